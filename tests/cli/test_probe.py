"""`fanout probe`."""

from __future__ import annotations

import json
import socket
import ssl
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.certificates import fingerprint
from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from fanout.link.model.evidence import Evidence
from fanout.probe.results import ProbeReport
from tests.cli.processes import run_fanout
from tests.probe.test_advice import ADDRESS, trial
from tests.support.certificates import Authority
from tests.support.mosquitto import Mosquitto, free_port

QUICK = ("--set-size", "20", "--mqtt", "5", "--filter", "plant/#")


@pytest.mark.mosquitto
def test_probe_prints_the_checks_and_a_configuration(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """What is printed below the verdict is a file that `fanout check` accepts."""
    answer = run_fanout("probe", mosquitto.address, *QUICK)
    assert (answer.returncode, answer.stderr) == (ExitCode.OK, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == f"primary     {mosquitto.address}"
    (snapshot,) = (line for line in lines if line.startswith("snapshot "))
    assert [part.strip() for part in snapshot.split("  ") if part][:2] == ["snapshot", "passed"]
    assert "yes: a link can replicate plant/# from it over MQTT 5, with the evidence marker" in lines
    assert "\nrights that the user of this link needs there\n\n# link primary of node edge-1\n" in answer.stdout
    assert "\ntopic read plant/#\n" in answer.stdout
    config = tmp_path / "edge.toml"
    config.write_text(answer.stdout[answer.stdout.index("[node]") :])
    checked = run_fanout("check", str(config), "--role", "secondary")
    assert checked.returncode == ExitCode.OK, checked.stderr


@pytest.mark.mosquitto
def test_probe_as_a_user_gives_json(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Without the rights to publish and to read the version there is no proof; every check is in the document."""
    acl, secret = tmp_path / "acl", tmp_path / "secret"
    acl.write_text("user reader\ntopic read #\n")
    secret.write_text("s3cret\n")
    mosquitto.settings = [f"acl_file {acl}"]
    mosquitto.restart()
    answer = run_fanout(
        *("probe", mosquitto.address, *QUICK, "--username", "reader", "--password-file", str(secret), "--json")
    )
    assert (answer.returncode, answer.stderr) == (ExitCode.NO, "")
    document = json.loads(answer.stdout)
    (first,) = document["trials"]
    (beats,) = (one for one in first["checks"] if one["check"] == "heartbeats")
    assert beats["result"] == "failed"
    assert "Not authorized" in beats["seen"]
    assert (document["can_replicate"], document["evidence"]) == (True, "two-pass")
    # It may not read what server this is.
    assert document["rights"].startswith("link primary of node edge-1, the user reader\nread  plant/#  (")
    link = tomllib.loads(document["configuration"])["link"][0]
    assert (link["username"], link["min_evidence"]) == ("reader", "two-pass")


@pytest.mark.mosquitto
def test_probe_that_is_refused_or_out_of_time(mosquitto: Mosquitto) -> None:
    """Both are failures that say what to do."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"mqtt://127.0.0.1:{silent.getsockname()[1]}"
        answer = run_fanout("probe", address, "--timeout", "1", *QUICK)
    assert answer.returncode == ExitCode.FAILED
    assert "the time was up" in answer.stderr
    assert "no: a link does not become ready over MQTT 5: the time was up before a link was tried" in answer.stdout
    mosquitto.settings = ["allow_anonymous false"]
    mosquitto.restart()
    answer = run_fanout("probe", mosquitto.address, "--filter", "#")
    assert (answer.returncode, answer.stdout) == (ExitCode.FAILED, "")
    assert "Not authorized" in answer.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_probe_of_a_primary_without_proof(as_json: bool, runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with which a link becomes ready are printed, but the answer is not yes."""

    async def found(*_: object, **__: object) -> ProbeReport:
        return ProbeReport(ADDRESS, "", (trial(4, Evidence.TWO_PASS),), True, "")

    monkeypatch.setattr("fanout.probe.runner.probe", found)
    answer = runner.invoke(app, ["probe", ADDRESS, "--filter", "#", *(["--json"] if as_json else [])])
    assert answer.exit_code == ExitCode.NO
    if as_json:
        document = json.loads(answer.stdout)
        assert (document["can_replicate"], document["evidence"]) == (True, "two-pass")
    else:
        assert "without proof: a link can replicate # from it over MQTT 3.1.1, bridge bit, only with" in answer.stdout
        assert tomllib.loads(answer.stdout[answer.stdout.index("[node]") :])["link"][0]["min_evidence"] == "two-pass"


def test_probe_of_nothing() -> None:
    """A primary that is not there is unreachable."""
    answer = run_fanout("probe", f"mqtt://127.0.0.1:{free_port()}", "--filter", "#")
    assert (answer.returncode, answer.stdout) == (ExitCode.UNREACHABLE, "")
    assert "Connection refused" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["127.0.0.1:1883"], '  URL: "127.0.0.1:1883" has no scheme\n    Write "mqtt://127.0.0.1:1883".'),
        (["mqtt://user@host"], "  URL: the address contains a user name or a password"),
        (["mqtt://host", "--prefix", "a/#"], '  --prefix: "a/#" is not a topic below which the node can publish'),
        (["mqtt://host", "--filter", "a/#/b"], '  --filter: "#" in "a/#/b" is not the whole last level'),
        (["mqtt://host", "--filter", ""], "  --filter: a Topic Filter has at least one character"),
        (
            ["mqtt://host", "--password-file", "/nonexistent/file"],
            "/nonexistent/file: 1 fault\n  cannot read the password: no such file or directory\n"
            "    Correct --password-file, or the file and its permissions.",
        ),
    ],
)
def test_options_are_checked_like_the_keys_of_a_link(arguments: list[str], text: str, runner: CliRunner) -> None:
    """Nothing is opened, and the message is the one that a configuration would get, with the option for the key."""
    answer = runner.invoke(app, ["probe", *(() if "--filter" in arguments else ("--filter", "#")), *arguments])
    assert answer.exit_code == ExitCode.USAGE
    assert text in answer.stderr


def test_the_filter_is_asked_for(runner: CliRunner) -> None:
    """The settings are for one filter, which is tried; there is no default."""
    answer = runner.invoke(app, ["probe", "mqtt://127.0.0.1"])
    assert answer.exit_code == ExitCode.USAGE
    assert "--filter" in answer.stderr


@pytest.mark.mosquitto
def test_probe_over_tls(tmp_path: Path) -> None:
    """With a CA, a pin or neither, and a client certificate; the configuration has what was given."""
    authority = Authority(tmp_path)
    authority.issue("server")
    certificate, key = authority.issue("edge")
    seen = fingerprint(ssl.PEM_cert_to_DER_cert((tmp_path / "server.pem").read_text()))
    port, web_port = free_port(), free_port()
    files = [f"cafile {authority.certificate}", f"certfile {tmp_path}/server.pem", f"keyfile {tmp_path}/server.key"]
    web = [f"listener {web_port} 127.0.0.1", "protocol websockets"]
    settings = ["max_queued_messages 0", f"listener {port} 127.0.0.1", *files, "require_certificate true", *web]
    shown = ("--client-certificate-file", str(certificate), "--client-key-file", str(key))
    with Mosquitto(tmp_path, settings=settings):
        address = f"mqtts://127.0.0.1:{port}"
        for option, value in (("--ca-file", str(authority.certificate)), ("--server-certificate-sha256", seen)):
            answer = run_fanout("probe", address, *QUICK, "--json", option, value, *shown)
            assert (answer.returncode, answer.stderr) == (ExitCode.OK, "")
            link = tomllib.loads(json.loads(answer.stdout)["configuration"])["link"][0]
            assert link[option.removeprefix("--").replace("-", "_")] == value
            assert (link["primary"], link["client_key_file"]) == (address, str(key))
        answer = run_fanout("probe", address, *QUICK, "--tls-insecure", *shown)
        assert answer.returncode == ExitCode.OK
        assert "--tls-insecure: the certificate is not verified" in answer.stderr
        answer = run_fanout("probe", f"ws://127.0.0.1:{web_port}/mqtt", *QUICK)
        assert (answer.returncode, answer.stderr) == (ExitCode.OK, "")
        for more, told in (
            ((), "the system does not know the CA of its certificate\n"),
            (("--server-certificate-sha256", "0" * 64), f"the fingerprint seen is {seen}\n"),
            (("--ca-file", str(tmp_path / "none")), f"cannot read its --ca-file, {tmp_path}/none: no such file or"),
            (("--ca-file", str(authority.certificate)), "--client-certificate-file"),
        ):
            answer = run_fanout("probe", address, *QUICK, *more)
            assert (answer.returncode, answer.stdout) == (ExitCode.UNREACHABLE, "")
            assert told in answer.stderr
            assert "of the link" not in answer.stderr
