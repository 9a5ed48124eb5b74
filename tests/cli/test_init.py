"""`fanout init`: a first configuration, for a primary that was tried."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from fanout.cli.probing import init as init_module
from fanout.config import LinkConfig, load_config, read_password
from fanout.errors import PrimaryRefused
from fanout.link.model.evidence import Evidence
from fanout.link.protocol.handshake import read_connack
from fanout.mqtt.packets import Connack
from fanout.probe.results import ProbeReport
from tests.cli.processes import COMMAND, run_fanout, run_on_terminal
from tests.probe.test_advice import ADDRESS, trial
from tests.support.mosquitto import Mosquitto, free_port, load_retained


@pytest.mark.mosquitto
def test_init_asks_for_what_is_not_given_and_the_secondary_becomes_ready(mosquitto: Mosquitto, tmp_path: Path) -> None:
    """One command makes it: it tries the primary, writes the files, prints the rights."""
    out = tmp_path / "edge.toml"
    asked = [
        ("Address of the primary", mosquitto.address),
        ("Topic Filters to replicate", "plant/# site/+"),
        ("User Name there", "edge"),
        ("Password, if any: ", "s3cret"),
        ("Start it now", "n"),
    ]
    answer = run_on_terminal("init", "--set-size", "20", "--out", str(out), columns=200, answers=asked)
    assert answer.exit_code == ExitCode.OK, answer.text
    assert "s3cret" not in answer.text
    assert "yes: a link can replicate plant/# and site/+ from it over MQTT 5, with the evidence marker" in answer.text
    assert "user edge\n" in answer.text
    assert "topic read site/+\n" in answer.text
    config = load_config(out, role="secondary")
    assert (config.links[0].username, read_password(config.links[0])) == ("edge", b"s3cret")
    assert [one.filter for one in config.links[0].selectors] == ["plant/#", "site/+"]
    assert stat.S_IMODE((tmp_path / "edge.password").stat().st_mode) == 0o600
    assert f"fanout secondary --config {out}" in answer.text
    assert config.http is not None
    with subprocess.Popen([*COMMAND, "secondary", "--config", str(out), "--log-level", "error"], cwd=tmp_path) as node:
        try:
            ready = run_fanout("ready", "--wait", "30", config.http.listen.authority)
        finally:
            node.send_signal(signal.SIGINT)  # without draining
        assert (ready.returncode, node.wait(30)) == (ExitCode.OK, 0), ready.stderr


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((), "Error: Invalid value for --primary: it is required"),
        (("--primary", "mqtt://127.0.0.1"), "Error: Invalid value for --filter: it is required"),
        (("--primary", "mqtt://127.0.0.1", "--filter", "a/#", "--filter", "a/b"), '  --filter: "a/b" overlaps'),
    ],
)
def test_init_without_a_terminal_needs_both(given: tuple[str, ...], text: str, runner: CliRunner) -> None:
    """Nobody is there to be asked; faults are those of a configuration."""
    answer = runner.invoke(app, ["init", *given])
    assert answer.exit_code == ExitCode.USAGE
    assert text in answer.stderr


def test_init_overwrites_nothing(runner: CliRunner, tmp_path: Path) -> None:
    """The file that is there stays, before anything is asked."""
    out = tmp_path / "edge.toml"
    out.write_text("mine")
    answer = runner.invoke(app, ["init", "--out", str(out), "--primary", ADDRESS, "--filter", "#"])
    assert (answer.exit_code, out.read_text()) == (ExitCode.USAGE, "mine")
    assert f"{out} exists" in answer.stderr


def test_init_writes_nothing_for_a_primary_of_no_use(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why, and which rights may be missing."""

    async def found(*_: object, **__: object) -> ProbeReport:
        return ProbeReport(ADDRESS, "", (trial(evidence=None, reason="it is so"),), True, "")

    monkeypatch.setattr("fanout.probe.runner.probe", found)
    out = tmp_path / "edge.toml"
    answer = runner.invoke(app, ["init", "--out", str(out), "--primary", ADDRESS, "--filter", "plant/#"])
    assert (answer.exit_code, out.exists()) == (ExitCode.NO, False)
    assert "no: a link does not become ready over MQTT 5: it is so" in answer.stdout
    assert "read  plant/#" in answer.stdout


def test_init_of_nothing(tmp_path: Path) -> None:
    """A primary that is not there is unreachable, and no file is left."""
    out = tmp_path / "edge.toml"
    answer = run_fanout("init", "--primary", f"mqtt://127.0.0.1:{free_port()}", "--filter", "#", "--out", str(out))
    assert (answer.returncode, out.exists()) == (ExitCode.UNREACHABLE, False)


USABLE = trial()


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[ProbeReport]:
    """Return the reports that probes have, the first one first; the last is that of all further ones."""
    reports = [ProbeReport(ADDRESS, "", (USABLE,), True, "")]

    async def probe(*_: object, **__: object) -> ProbeReport:
        return reports.pop(0) if len(reports) > 1 else reports[0]

    monkeypatch.setattr("fanout.probe.runner.probe", probe)
    return reports


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a terminal be there, on which a password is typed."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(init_module, "_ask_password", lambda: "s3cret")
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)


@pytest.mark.usefixtures("found", "typed")
def test_a_secondary_that_is_started_has_no_password_and_no_foreign_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment is as it was, and the current directory is not searched for modules."""
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execv", lambda _, words: started.append((words, dict(os.environ))))
    before, out = dict(os.environ), tmp_path / "edge.toml"
    init_module.init(primary=ADDRESS, filters=["#"], username="edge", out=out, start=True)
    [(words, environment)] = started
    assert words == [sys.executable, "-P", "-m", "fanout", "secondary", "--config", str(out)]
    assert environment == before
    assert (tmp_path / "edge.password").read_text() == "s3cret\n"


@pytest.mark.usefixtures("typed")
def test_a_refused_password_is_called_the_typed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is named that nobody has set, and none stays."""

    async def probe(link: LinkConfig, **_: object) -> ProbeReport:
        read_connack(Connack(session_present=False, reason_code=0x86), link)
        raise AssertionError

    monkeypatch.setattr("fanout.probe.runner.probe", probe)
    before = dict(os.environ)
    with pytest.raises(PrimaryRefused) as caught:
        init_module.init(primary=ADDRESS, filters=["#"], username="edge", out=tmp_path / "edge.toml")
    assert "Check the user name edge, the typed password, and" in caught.value.hint
    assert dict(os.environ) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", ["\udcff", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")])
def test_a_typed_password_that_is_not_utf_8(answer: str | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with what to do, however Python reads it."""

    def prompt(*_: object, **__: object) -> str:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(typer, "prompt", prompt)
    with pytest.raises(typer.BadParameter, match="is not UTF-8; write it to a file"):
        init_module._ask_password()


@pytest.mark.usefixtures("found")
def test_init_writes_any_filter(runner: CliRunner, tmp_path: Path) -> None:
    """A character without a shape beyond the first plane is not two surrogates, which TOML does not have."""
    out, topic_filter = tmp_path / "edge.toml", "plant/\U000e0001\U0001fae9"
    answer = runner.invoke(app, ["init", "--out", str(out), "--primary", ADDRESS, "--filter", topic_filter])
    assert answer.exit_code == ExitCode.OK, answer.stderr
    assert load_config(out, role="secondary").links[0].selectors[0].filter == topic_filter
    assert "\\U000e0001" in out.read_text()


def test_init_after_the_rights_are_given(runner: CliRunner, tmp_path: Path, found: list[ProbeReport]) -> None:
    """The file of the first run, without proof, is replaced with `--force`, which the first run says."""
    found.insert(0, ProbeReport(ADDRESS, "", (trial(evidence=Evidence.TWO_PASS),), True, ""))
    out = tmp_path / "edge.toml"
    words = ["init", "--out", str(out), "--primary", ADDRESS, "--filter", "#"]
    answer = runner.invoke(app, words)
    assert "give the user those rights, and run this again with --force" in answer.stdout
    assert f"fanout check {out} --acl --for mosquitto" in answer.stdout.replace("\n", " ")
    assert 'min_evidence = "two-pass"' in out.read_text()
    assert runner.invoke(app, words).exit_code == ExitCode.USAGE
    answer = runner.invoke(app, [*words, "--force"])
    assert (answer.exit_code, "min_evidence" in out.read_text()) == (ExitCode.OK, False)
    assert "--force" not in answer.stdout


def test_init_looks_at_the_directory_first(runner: CliRunner, tmp_path: Path) -> None:
    """Nothing is tried for a file that cannot be written; nothing listens at this primary, which would be exit 3."""
    for out, text in ((tmp_path / "a" / "edge.toml", "there is no directory"), (tmp_path, "exists")):
        words = ["init", "--out", str(out), "--force", "--primary", f"mqtt://127.0.0.1:{free_port()}", "--filter", "#"]
        answer = runner.invoke(app, words)
        assert (answer.exit_code, text in answer.stderr) == (ExitCode.USAGE, True), answer.stderr


def test_init_replaces_no_file_that_it_reads(runner: CliRunner, tmp_path: Path) -> None:
    """A key or a password is not lost for a name that was typed twice."""
    secret = tmp_path / "edge.password"
    secret.write_text("s3cret")
    words = ["--out", str(secret), "--primary", ADDRESS, "--filter", "#", "--username", "edge"]
    answer = runner.invoke(app, ["init", "--force", *words, "--password-file", str(secret)])
    assert (answer.exit_code, secret.read_text()) == (ExitCode.USAGE, "s3cret")
    assert "would replace a file that another option names" in answer.stderr


@pytest.mark.usefixtures("found", "typed")
def test_the_typed_password_never_takes_the_name_of_the_configuration(tmp_path: Path) -> None:
    """Both files are there."""
    out = tmp_path / "edge.password"
    init_module.init(primary=ADDRESS, filters=["#"], username="edge", out=out)
    assert read_password(load_config(out, role="secondary").links[0]) == b"s3cret"
    assert (tmp_path / "edge.password.password").read_text() == "s3cret\n"


@pytest.mark.usefixtures("found")
def test_a_second_node_of_a_machine_has_its_own_identifier(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes with one would take over the session of each other's link."""
    ids = []
    for taken in range(3):
        monkeypatch.setattr(init_module, "_free_port", lambda first, taken=taken: first + taken)
        out = tmp_path / f"{taken}.toml"
        runner.invoke(app, ["init", "--out", str(out), "--primary", ADDRESS, "--filter", "#"])
        ids.append(load_config(out, role="secondary").node.id)
    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3"]


@pytest.mark.mosquitto
@pytest.mark.parametrize("selected", ["plant/#", "plan/#"])
def test_init_tells_of_a_filter_that_selects_nothing(mosquitto: Mosquitto, tmp_path: Path, selected: str) -> None:
    """A link can replicate from there, but perhaps the filter is misspelt; topics of the probe do not count."""
    load_retained(mosquitto.port, [("plant/a", b"1")])
    given = ("--primary", mosquitto.address, "--filter", selected, "--set-size", "20", "--out", str(tmp_path / "a"))
    answer = run_fanout("init", *given)
    assert answer.returncode == ExitCode.OK, answer.stderr
    assert (f"No retained message came for {selected}" in answer.stdout) is (selected == "plan/#")


def test_init_takes_the_fingerprint_that_errors_advise(
    runner: CliRunner, tmp_path: Path, found: list[ProbeReport]
) -> None:
    """An error about TLS names the option, and the file has its value."""
    found[:] = [ProbeReport("mqtts://127.0.0.1", "", (USABLE,), True, "")]
    out, digest = tmp_path / "edge.toml", "ab" * 32
    given = ("--primary", "mqtts://127.0.0.1", "--filter", "plant/#", "--server-certificate-sha256", digest)
    answer = runner.invoke(app, ["init", *given, "--out", str(out)])
    assert answer.exit_code == ExitCode.OK, answer.stderr
    assert len(load_config(out, role="secondary").links[0].server_certificate_sha256) == 1
