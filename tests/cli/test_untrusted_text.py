"""Every command, given what strangers wrote: nothing of it is obeyed by a terminal or looks like something else."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from rich.console import Console
from typer.testing import CliRunner

import fanout.cli
from fanout.api.models import AuditDetail, Draining, Fault, LagDocument, NodeStatus, PoolDocument, Readiness
from fanout.cli import main
from fanout.cli.app import app
from fanout.cli.output.progress import SyncProgress
from fanout.escaping import printable
from fanout.probe.results import Finding, Outcome, ProbeReport, Trial
from fanout.probe.settings import Settings
from fanout.replica.update import ChangeKind, Changes, Phase, Update, content_digest
from fanout.replog.write.writer import LogWriter
from fanout.selection import Selector
from tests.api.stand_in import live_link, ready_node, serving, snapshot_link, syncing_node
from tests.cli.processes import run_fanout, run_on_terminal
from tests.cli.real_logs import EPOCH, RunningClock

HOSTILE = (
    "x\x1b]0;owned\x07\x1b[2J\r\nedge-1 (secondary) is ready\ty\x7f\x9b31m\x85\u202e\u2066\u200b\u2028\u3164"
    "[bold red]:smile:"
)
"""A title, an erased screen, a forged line, a turned direction, a hidden character, and what rich would obey."""
ARGUMENT = HOSTILE.replace("/", "")

_OWN = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[[0-9]*[A-BK]|\r(?=\n)|\r(?=\x1b\[2K)|\r(?=\x1b\[1A)")
"""Colours and the redrawing of progress, which are fanout's own."""


def check_output(output: str) -> str:
    """Return output after checking that every line of it can be shown, that nothing is forged, and markup is shown."""
    for line in output.split("\n"):
        assert printable(line) == line, ascii(line)
        assert not line.startswith("edge-1 (secondary) is ready"), output
    return output


def check_run(
    *arguments: str, exit_code: int | None = None, shown: str = "[bold red]:smile:", on_terminal: bool = True
) -> str:
    """Run a command in this process as in pipes, and on a terminal; return both outputs of the former together.

    Args:
        arguments: Of the command.
        exit_code: With what it ends.
        shown: What of the hostile text is seen unchanged.
        on_terminal: False where a similar command is run on a terminal.
    """
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == exit_code, answer.output
    piped = check_output(answer.stdout + answer.stderr)
    assert shown in piped
    if on_terminal:
        run = run_on_terminal(*arguments, columns=4000)
        assert run.exit_code == exit_code
        assert shown in check_output(_OWN.sub("", run.raw))
        assert "\x1b[1;31m:smile:" not in run.raw
    return piped


def hostile(model: type[BaseModel], document: Any, *, text: str = HOSTILE) -> Any:
    """Return a document in which every text that `model` allows to be another one is hostile, names too."""
    places = list(_texts(document))
    for path in places:
        former = _get(document, path)
        _put(document, path, text)
        try:
            model.model_validate(document)
        except ValidationError:
            _put(document, path, former)
    return document


def _texts(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, str) or document is None:
        yield path
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from _texts(value, (*path, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from _texts(value, (*path, index))


def _get(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    _get(document, path[:-1])[path[-1]] = value


@contextlib.contextmanager
def answering(documents: dict[str, tuple[int, Any]]) -> Iterator[str]:
    """Answer each path with its status and document; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = documents.get(self.path, (404, {}))
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(10)


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    """Serve a node that says hostile things wherever its documents have a text; yield its URL."""
    stand_in = syncing_node()
    stand_in.links = (live_link("office", last_error="x"), snapshot_link())
    status = hostile(NodeStatus, stand_in.status().model_dump(mode="json"))
    status["links"][0]["selectors"][0]["unfit_total"] = {HOSTILE: 3}
    status["server"]["dropped_total"] = {HOSTILE: 3}
    name = status["links"][0]["name"]
    assert name == HOSTILE
    audit = AuditDetail(
        ended=datetime.now(UTC),
        confirmed=False,
        checked_topics=1,
        changed_topics=0,
        removed_topics=0,
        kept_topics=1,
        took_seconds=1,
        failure=HOSTILE,
    )
    stand_in.pool_reasons = ("edge-2 is not ready",)
    pool = stand_in.pool()
    lag = hostile(LagDocument, stand_in.lag().model_dump(mode="json"))
    with answering(
        {
            "/readyz": (503, hostile(Readiness, stand_in.readiness().model_dump(mode="json"))),
            "/v1/status": (200, status),
            "/v1/lag": (200, lag),
            "/v1/pool": (200, hostile(PoolDocument, pool.model_dump(mode="json"))),
            "/v1/drain": (202, hostile(Draining, ready_node().drain().model_dump(mode="json"))),
            "/v1/links/plant/audit": (200, audit.model_dump(mode="json")),
        }
    ) as url:
        yield url


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (["status"], 0),
        (["lag"], 0),
        (["ready"], 1),
        (["ready", "--wait", "0.01"], 1),
        (["pool"], 0),
        (["drain"], 0),
        (["drain", "--wait", "0.01"], 1),
    ],
)
def test_what_a_node_says(node: str, arguments: list[str], exit_code: int) -> None:
    """Node, links, reasons, hints, errors and figures: all texts of its documents."""
    check_run(*arguments, node, exit_code=exit_code)


@pytest.mark.parametrize("command", ["status", "lag", "ready", "drain"])
def test_json_of_what_a_node_says(node: str, command: str) -> None:
    """It is valid JSON, has the very text, and is as safe to print."""
    answer = run_fanout(command, "--json", node)
    assert answer.stdout.count("\n") > 2
    assert json.loads(check_output(answer.stdout))["node"] == HOSTILE


def test_a_lone_surrogate_in_what_a_node_says() -> None:
    """It cannot be written as UTF-8, so it is shown as an escape."""
    status = ready_node().status().model_dump(mode="json") | {"node": "\ud800"}
    with answering({"/v1/status": (200, status)}) as url:
        answer = run_fanout("status", "--json", url)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert '"node": "\\ud800"' in answer.stdout
        answer = run_fanout("status", url)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith("node     \\ud800 (secondary)\n")


@pytest.mark.parametrize("status", [200, 409])
def test_audit(status: int) -> None:
    """What was found, and why an audit cannot begin."""
    link = "plant"
    document = hostile(NodeStatus, ready_node().status().model_dump(mode="json"))
    document["links"][0]["name"] = link
    audit: dict[str, Any] = Fault(error=HOSTILE, hint=HOSTILE).model_dump(mode="json")
    if status == 200:
        audit = {"ended": datetime.now(UTC).isoformat(), "confirmed": False, "failure": HOSTILE, "took_seconds": 1}
        audit |= dict.fromkeys(("checked_topics", "changed_topics", "removed_topics", "kept_topics"), 1)
    with answering({"/v1/status": (200, document), f"/v1/links/{link}/audit": (status, audit)}) as url:
        check_run("audit", "--url", url, exit_code=1 if status == 200 else 5)
        answer = run_fanout("audit", "--json", "--url", url)
        assert HOSTILE in json.loads(check_output(answer.stdout))[link].values()
        check_run("audit", ARGUMENT, "--url", url, exit_code=5)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of hostile topics and events in a directory with a hostile name."""
    directory = tmp_path_factory.mktemp("log") / ARGUMENT
    clock = RunningClock(EPOCH)
    log = LogWriter(directory, node="edge-1", role="secondary", node_epoch=EPOCH, clock=clock)
    log.open()
    log.event("start", detail=json.dumps({"format": 1, "links": []}))
    log.event("state", link=HOSTILE, link_epoch=EPOCH, state=HOSTILE, detail=HOSTILE)
    log.event("complete", link=HOSTILE, link_epoch=EPOCH, selector=HOSTILE, evidence=HOSTILE)
    topics = [HOSTILE.encode(), b"long/" + b"l" * 60_000]
    made: list[Update] = [
        (topic, b"1", 1, True, b"", clock.now_ns(), 0, content_digest(topic, b"1"), None) for topic in topics
    ]
    source = log.source(link=HOSTILE, selectors=[Selector("#")])
    changes = Changes(made, bytearray([ChangeKind.NEW]) * len(made), made, Phase.LIVE)
    log.append(changes, source=source, link_epoch=EPOCH)
    log.event("stop")
    assert log.close(timeout_s=30)
    return directory


@pytest.mark.parametrize("arguments", [["show"], ["show", "--events"], ["stat"], ["verify"]])
def test_log(log: Path, arguments: list[str]) -> None:
    """Topics, links, details and evidence; the newest rows of a log with a hostile topic."""
    shown = "[bold red]:smile:" if arguments[0] == "show" else "edge-1"
    text = check_run("log", *arguments, str(log), exit_code=0, shown=shown)
    if arguments == ["show"]:
        assert len(text.splitlines()) == 3, "one line for each row"
        assert "… (60,005 characters)" in text


def test_log_show_json(log: Path) -> None:
    """One line of JSON for each row, with the whole topic."""
    answer = run_fanout("log", "show", "--json", str(log))
    topics = {json.loads(line)["topic"] for line in check_output(answer.stdout).splitlines()}
    assert topics == {HOSTILE, f"long/{'l' * 60_000}"}


def test_letters_that_the_locale_lacks() -> None:
    """They are escaped as in JSON, which stays valid."""
    node = ready_node()
    node.node = "küche-温度-\U0001f321"
    with serving(node) as url:
        answer = run_fanout("status", url, PYTHONIOENCODING="ascii")
        assert answer.stdout.startswith("node     k\\u00fcche-\\u6e29\\u5ea6-\\ud83c\\udf21 (secondary)\n"), answer
        answer = run_fanout("status", "--json", url, PYTHONIOENCODING="ascii")
    assert json.loads(answer.stdout)["node"] == node.node


def test_log_that_is_damaged_or_none(log: Path, tmp_path: Path) -> None:
    """The paths of what cannot be read have the names of directories in them."""
    (tmp_path / ARGUMENT).mkdir()
    for command in ("show", "stat", "verify"):
        check_run("log", command, str(tmp_path / ARGUMENT), exit_code=5)
    for path in (log / "v1" / "updates").rglob("*.parquet"):
        whole = path.read_bytes()
        path.write_bytes(b"PAR1")
        try:
            check_run("log", "verify", str(log), exit_code=1)
        finally:
            path.write_bytes(whole)


def test_check(tmp_path: Path) -> None:
    """Values and names in a configuration, whether it has faults or not, and its path."""
    path = tmp_path / f"{ARGUMENT}.toml"
    text = json.dumps(HOSTILE)
    # What is behind the first fault of a kind is not looked at, so each has a file of its own.
    tables = (
        f"[node]\nid = {text}",
        f'[node]\nid = "a"\n{text} = 1',
        f"[{text}]\na = 1",
        f'[node]\nid = "a"\n[[link]]\nname = {text}\nprimary = {text}',
        f'[node]\nid = "a"\n[[link]]\nname = "l"\nprimary = "mqtt://h"\n[[link.selector]]\nfilter = {text[:-1]}/#/a"',
        f'[node]\nid = "a"\n[server]\nlisten = [{text}]',
        f'[node]\nid = "a"\n[server]\n[access]\npassword_file = {text}',
        f"{text} {text}",
    )
    for number, table in enumerate(tables):
        path.write_text(table)
        check_run("check", str(path), exit_code=2, on_terminal=number == 0)
    check_run("check", str(tmp_path / f"{ARGUMENT}.none"), exit_code=2)
    path.write_text(
        f'[node]\nid = "a"\n[server]\n[[link]]\nname = "l"\nprimary = "mqtt://127.0.0.1"\nclient_id = {text}\n'
        f'username = {text}\npassword_env = "X"\n[[link.selector]]\nfilter = {text}\n'
    )
    check_run("check", str(path), exit_code=0)
    for role in ("secondary", "primary", "tap"):
        path.write_text(f"[node]\nid = {text}")
        check_run(role, "--config", str(path), exit_code=2)


def test_passwd(tmp_path: Path, runner: CliRunner) -> None:
    """The name of a user and the path of the file."""
    check_run("passwd", "--delete", str(tmp_path / ARGUMENT), "anna", exit_code=5)
    check_run("passwd", "--delete", str(tmp_path / "file"), ARGUMENT, exit_code=2, shown="passwd")
    answer = runner.invoke(app, ["passwd", "--batch", str(tmp_path / ARGUMENT), "anna"], input="secret\n")
    assert answer.exit_code == 0
    assert "anna added to " in check_output(answer.stdout)


def test_the_command_line_itself(tmp_path: Path) -> None:
    """What is wrong with an argument is told with the argument, which a script may have from a topic."""
    wrong = (
        [ARGUMENT],
        [f"--{ARGUMENT}"],
        ["status", f"http://{ARGUMENT}"],
        ["status", "a", ARGUMENT],
        ["status", f"--{ARGUMENT}"],
        ["log", ARGUMENT],
        ["log", "show", str(tmp_path), "--topic", f"{ARGUMENT}#"],
        ["log", "show", str(tmp_path), "--last", ARGUMENT],
        ["report", "lag", str(tmp_path), "--since", ARGUMENT],
        ["check", "x", "--role", ARGUMENT],
        ["probe", f"mqtt://{ARGUMENT}", "--filter", "#"],
    )
    for number, arguments in enumerate(wrong):
        check_run(*arguments, exit_code=2, on_terminal=number == 0)


def test_probe(monkeypatch: pytest.MonkeyPatch, runner: CliRunner) -> None:
    """What a primary says that it is, and what was seen of it."""
    trial = Trial(Settings(4), [Finding(HOSTILE, Outcome.FAILED, HOSTILE)], reason=HOSTILE, hint=HOSTILE)

    async def found(*_: object, on_check: Callable[[str], None], **__: object) -> ProbeReport:
        on_check(HOSTILE)
        return ProbeReport("mqtt://h:1883", HOSTILE, (trial,), False, HOSTILE)

    monkeypatch.setattr("fanout.probe.runner.probe", found)
    answer = runner.invoke(app, ["probe", "mqtt://h", "--filter", "a\x7f\x85b", "--username", "u\u2028\u202e"])
    assert answer.exit_code == 5, answer.output
    assert "says it is  x\\x1b" in check_output(answer.stdout)
    assert "not cleaned up: x\\x1b" in check_output(answer.stderr)
    answer = runner.invoke(app, ["probe", "mqtt://h", "--filter", "#", "--json"])
    assert json.loads(check_output(answer.stdout))["server"] == HOSTILE


def test_report(log: Path, monkeypatch: pytest.MonkeyPatch, runner: CliRunner) -> None:
    """What a report says of hostile logs, its JSON, and why none can be made."""
    pytest.importorskip("pyspark")
    from fanout.errors import ReportError
    from fanout.reports import entry
    from tests.reports.documents import report

    made = SimpleNamespace(report=report(hostile=True), exit_code=0)
    made.report = made.report.model_copy(update={"notices": (HOSTILE,), "basis": (HOSTILE,)})
    monkeypatch.setattr(entry, "run_report", lambda *_, progress, **__: [progress(HOSTILE), made][1])
    answer = runner.invoke(app, ["report", "lag", str(log)])
    assert answer.exit_code == 0, answer.output
    assert "[bold red]:smile:" in check_output(answer.stdout.replace("\xa0", " "))
    answer = runner.invoke(app, ["report", "lag", str(log), "--json", "-"])
    assert json.loads(check_output(answer.stdout))["notices"] == [HOSTILE]

    def fail(*_: object, **__: object) -> None:
        raise ReportError(HOSTILE, hint=HOSTILE)

    monkeypatch.setattr(entry, "run_report", fail)
    answer = runner.invoke(app, ["report", "lag", str(log)])
    assert answer.exit_code == 5
    assert "error: x\\x1b" in check_output(answer.stderr)
    check_run("report", "lag", str(log / "none"), exit_code=5)


def test_progress() -> None:
    """The names and states of links while a command waits, and the stages of a report."""
    from fanout.cli.output.report_progress import report_progress

    for screen in (Console(file=StringIO(), force_terminal=True, width=4000) for _ in range(2)):
        readiness = syncing_node().readiness()
        link = readiness.links[1].model_copy(update={"name": HOSTILE, "state": HOSTILE})
        with SyncProgress(screen, url="http://h", enabled=True, auto_refresh=False) as progress:
            progress.update(readiness.model_copy(update={"node": HOSTILE, "links": (link,)}))
        with report_progress(screen) as stages:
            stages(HOSTILE)
        assert isinstance(screen.file, StringIO)
        drawn = screen.file.getvalue()
        assert "[bold red]:smile:" in drawn
        check_output(_OWN.sub("", drawn))


def test_a_defect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback of a defect quotes what it was about."""

    def fail(**_: object) -> None:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("fanout.cli.app.app", fail)
    with pytest.raises(SystemExit):
        main()
    assert "RuntimeError: x\\x1b" in check_output(capsys.readouterr().err)


def test_only_the_terminal_module_makes_text() -> None:
    """What rich gets as a `Text` passes no console of ours, so it is made in one place, from what is printable."""
    package = Path(fanout.cli.__file__).parent
    makers = {path.name for path in package.rglob("*.py") if re.search(r"\bText\b[.(]|from_markup", path.read_text())}
    assert makers == {"progress.py", "terminal.py"}, "progress.py makes some of numbers"
