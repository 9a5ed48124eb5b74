"""`fanout probe`."""

from __future__ import annotations

import importlib.util
import json
import ssl
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.certificates import fingerprint
from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from fanout.probe.results import ProbeReport
from tests.cli.processes import run_fanout
from tests.probe.test_advice import ACTIVEMQ, ADDRESS, version
from tests.support.certificates import Authority
from tests.support.mosquitto import Mosquitto, free_port

QUICK = ("--set-size", "20", "--mqtt", "5")


@pytest.mark.mosquitto
def test_probe_prints_the_checks_and_a_configuration(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """What is printed below the verdict is a file that `fanout check` accepts."""
    answer = run_fanout("probe", mosquitto.address, *QUICK)
    assert (answer.returncode, answer.stderr) == (ExitCode.OK, "")
    lines = answer.stdout.splitlines()
    assert lines[0] == f"primary     {mosquitto.address}"
    (marker,) = (line for line in lines if line.startswith("marker "))
    assert [part.strip() for part in marker.split("  ") if part][:3] == ["marker", "passed", "behind all 20"]
    assert "yes: a link can replicate from it over MQTT 5, with the evidence marker" in lines
    assert "\nrights that the user of this link needs there\n\n# link primary of node edge-1\n" in answer.stdout
    assert "\ntopic read #\n" in answer.stdout
    config = tmp_path / "edge.toml"
    config.write_text(answer.stdout[answer.stdout.index("[node]") :])
    checked = run_fanout("check", str(config), "--role", "secondary")
    assert checked.returncode == ExitCode.OK, checked.stderr


@pytest.mark.mosquitto
def test_probe_as_a_user_gives_json(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """Without the right to publish the verdict is no, with every check in the document."""
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
    (control,) = (one for one in document["mqtt"]["5"] if one["check"] == "control message")
    assert (control["result"], control["meaning"]) == ("not tested", "")
    assert control["seen"].startswith("not permitted: ")
    assert not document["can_replicate"]
    # It may not read what server this is.
    assert document["rights"].startswith("link primary of node edge-1, the user reader\nread  #  (")
    assert tomllib.loads(document["configuration"])["link"][0]["username"] == "reader"


@pytest.mark.mosquitto
def test_probe_that_is_refused_or_out_of_time(mosquitto: Mosquitto) -> None:
    """Both are failures that say what to do."""
    answer = run_fanout("probe", mosquitto.address, "--timeout", "1", "--set-size", "100000", "--mqtt", "5")
    assert answer.returncode == ExitCode.FAILED
    assert "the time was up" in answer.stderr
    assert "not tested" in answer.stdout
    mosquitto.settings = ["allow_anonymous false"]
    mosquitto.restart()
    answer = run_fanout("probe", mosquitto.address)
    assert (answer.returncode, answer.stdout) == (ExitCode.FAILED, "")
    assert "refuses the connection" in answer.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_probe_of_a_primary_without_proof(as_json: bool, runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings with which a link becomes ready are printed, but the answer is not yes."""

    async def found(*_: object, **__: object) -> ProbeReport:
        return ProbeReport(ADDRESS, "", (version(4, **ACTIVEMQ),), True, "")

    monkeypatch.setattr("fanout.probe.runner.probe", found)
    answer = runner.invoke(app, ["probe", ADDRESS, *(["--json"] if as_json else [])])
    assert answer.exit_code == ExitCode.NO
    if as_json:
        document = json.loads(answer.stdout)
        assert (document["can_replicate"], document["evidence"]) == (True, "two-pass")
    else:
        assert "without proof: a link can replicate from it over MQTT 3.1.1 with min_evidence" in answer.stdout
        assert tomllib.loads(answer.stdout[answer.stdout.index("[node]") :])["link"][0]["min_evidence"] == "two-pass"


def test_probe_of_nothing() -> None:
    """A primary that is not there is unreachable."""
    answer = run_fanout("probe", f"mqtt://127.0.0.1:{free_port()}")
    assert (answer.returncode, answer.stdout) == (ExitCode.UNREACHABLE, "")
    assert "connection refused" in answer.stderr


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
    answer = runner.invoke(app, ["probe", *arguments])
    assert answer.exit_code == ExitCode.USAGE
    assert text in answer.stderr


def test_probe_without_its_extra(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the install command."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "aiomqtt" else found(name))
    answer = runner.invoke(app, ["probe", "mqtt://127.0.0.1"])
    assert answer.exit_code == ExitCode.EXTRA_MISSING
    assert "-m pip install 'fanout-mqtt[probe]'" in answer.stderr


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
