"""`fanout report`: what it hands to the Spark job, and one run of the real job."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.errors import ReportError
from fanout.replog.shipping.object_store import ObjectStore
from fanout.reports import ReportOptions, entry
from fanout.reports.read.log_files import LogFiles
from fanout.reports.render import terminal
from fanout.reports.values.document import ReportName
from tests.cli.processes import run_on_terminal
from tests.cli.real_logs import EPOCH, write_primary_log, write_secondary_log
from tests.support.object_store import LocalS3, local_s3


class StandInReport:
    """Takes the place of a finished report."""

    def to_json(self) -> str:
        return '{"report": "stand-in"}\n'


class StandInResult:
    """Takes the place of `fanout.reports.entry.ReportResult`."""

    def __init__(self, exit_code: int) -> None:
        self.report = StandInReport()
        self.exit_code = exit_code


class StandInJob:
    """Takes the place of `run_report`."""

    def __init__(self) -> None:
        self.exit_code = 0
        self.error: Exception | None = None
        self.name: str = ""
        self.logs: LogFiles | None = None
        self.options = ReportOptions()
        self.files_were_there = False

    def __call__(
        self, name: str, logs: LogFiles, options: ReportOptions, *, progress: Callable[[str], None]
    ) -> StandInResult:
        progress("starting Spark")
        self.name, self.logs, self.options = name, logs, options
        local = [path for path in (*logs.updates, *logs.events) if "://" not in path]
        self.files_were_there = all(Path(path).is_file() for path in local)
        if self.error is not None:
            raise self.error
        return StandInResult(self.exit_code)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> StandInJob:
    """Put a stand-in in the place of the jobs and of the printing."""
    stand_in = StandInJob()
    monkeypatch.setattr(entry, "run_report", stand_in)
    monkeypatch.setattr(terminal, "print_report", print_stand_in)
    return stand_in


def print_stand_in(report: StandInReport, *, console: Console, verbose: bool) -> None:
    """Print one line with trailing blanks."""
    console.print("a report, whole   " if verbose else "a report   ")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a log that a primary and a secondary share; no test changes it."""
    directory = tmp_path_factory.mktemp("logs") / "log"
    write_primary_log(directory, updates=20)
    write_secondary_log(directory, updates=20, without=frozenset({3, 4}))
    return directory


@pytest.mark.parametrize("name", ["summary", "completeness", "all"])
def test_completeness_stages_the_logs_and_passes_every_option(
    runner: CliRunner, job: StandInJob, log: Path, tmp_path: Path, name: str
) -> None:
    """All options reach the job, which finds the staged files; afterwards the temporary ones are gone."""
    arguments = [
        *("--reference", "hub", "--settle", "2.5", "--depth", "2", "--master", "local[1]"),
        *(
            "--fail-under",
            "99.5",
            "--accept-union",
            "--json",
            str(tmp_path / "r.json"),
            "--html",
            str(tmp_path / "r.html"),
        ),
        *("--parquet", "s3a://bucket/tables", "--tables", "lake.mqtt", "--behind-max", "7"),
        *("--markdown", "s3a://bucket/r.md", "--metrics", "s3a://bucket/r.txt"),
        *("--since", "2026-02-02T14:00", "--until", "2026-02-02T16:00+01:00"),
    ]
    answer = runner.invoke(app, ["report", name, str(log), *arguments])
    assert answer.exit_code == 0, answer.output
    assert job.name == name
    assert job.options == ReportOptions(
        reference="hub",
        settle_s=2.5,
        behind_max_s=7,
        depth=2,
        since=datetime(2026, 2, 2, 14, tzinfo=UTC),
        until=datetime(2026, 2, 2, 15, tzinfo=UTC),
        fail_under=99.5,
        accept_union=True,
        master="local[1]",
        json_path=tmp_path / "r.json",
        html_path=tmp_path / "r.html",
        markdown_path="s3a://bucket/r.md",
        metrics_path="s3a://bucket/r.txt",
        parquet="s3a://bucket/tables",
        tables="lake.mqtt",
    )
    assert job.logs is not None
    assert job.logs.directories == (str(log),)
    assert (len(job.logs.updates), len(job.logs.events)) == (2, 2)
    assert job.files_were_there


@pytest.mark.parametrize(
    "name", ["summary", "completeness", "all", "lag", "snapshots", "convergence", "stalls", "traffic"]
)
def test_defaults_are_those_of_the_job(runner: CliRunner, job: StandInJob, log: Path, name: ReportName) -> None:
    """The defaults that the help shows are the job's own."""
    assert runner.invoke(app, ["report", name, str(log)]).exit_code == 0
    assert job.name == name
    assert job.options in (ReportOptions(), ReportOptions(depth=entry.DEPTHS.get(name, 0)))


def test_lag_passes_its_options(runner: CliRunner, job: StandInJob, log: Path) -> None:
    """The lag report needs no reference."""
    options = ["--master", "local[2]", "--until", "2026-02-02", "--depth", "3"]
    answer = runner.invoke(app, ["report", "lag", str(log), *options])
    assert answer.exit_code == 0
    assert job.options == ReportOptions(depth=3, until=datetime(2026, 2, 2, tzinfo=UTC), master="local[2]")


@pytest.mark.parametrize("name", ["snapshots", "convergence", "stalls", "traffic"])
def test_single_sections_pass_their_options(
    runner: CliRunner, job: StandInJob, log: Path, tmp_path: Path, name: str
) -> None:
    """Each of the four hands over its own options; snapshots need no reference, traffic has a depth."""
    arguments = ["--settle", "3", "--parquet", str(tmp_path / "tables"), "--html", str(tmp_path / "r.html")]
    arguments += ["--since", "2026-02-02 14:00Z"]
    expected = ReportOptions(
        settle_s=3,
        since=datetime(2026, 2, 2, 14, tzinfo=UTC),
        html_path=tmp_path / "r.html",
        parquet=str(tmp_path / "tables"),
    )
    if name != "snapshots":
        arguments += ["--reference", "hub"]
        expected = replace(expected, reference="hub")
    if name == "traffic":
        arguments += ["--depth", "2"]
        expected = replace(expected, depth=2)
    answer = runner.invoke(app, ["report", name, str(log), *arguments])
    assert answer.exit_code == 0, answer.output
    assert (job.name, job.options) == (name, expected)


def test_report_is_printed_plain_in_a_pipe(runner: CliRunner, job: StandInJob, log: Path) -> None:
    """Tables go to standard output, without trailing blanks, and nothing else does."""
    answer = runner.invoke(app, ["report", "lag", str(log)])
    assert (answer.stdout, answer.stderr) == ("a report\n", "")


def test_json_to_standard_output_is_alone(runner: CliRunner, job: StandInJob, log: Path) -> None:
    """`--json -` prints the document instead of the tables, and writes no file called -."""
    answer = runner.invoke(app, ["report", "completeness", str(log), "--json", "-"])
    assert answer.stdout == '{"report": "stand-in"}\n'
    assert job.options.json_path is None


@pytest.mark.parametrize("option", ["--html", "--markdown", "--metrics"])
def test_another_document_to_standard_output_is_alone(
    runner: CliRunner, job: StandInJob, log: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file called - comes to be where the command was run."""
    monkeypatch.chdir(log)
    monkeypatch.setattr(entry, "RENDERED", dict.fromkeys(entry.RENDERED, lambda report: "a document\n"))
    answer = runner.invoke(app, ["report", "summary", str(log), option, "-"])
    assert answer.stdout == "a document\n"
    assert (job.options.html_path, job.options.markdown_path) == (None, None)
    assert runner.invoke(app, ["report", "summary", str(log), option, "-", "--json", "-"]).exit_code == 2


def test_a_file_that_is_read_is_not_standard_output(runner: CliRunner, job: StandInJob, log: Path) -> None:
    """Nor is it a file called -."""
    answer = runner.invoke(app, ["report", "summary", str(log), "--trend", "-"])
    assert answer.exit_code == 2
    assert "give a FILE" in " ".join(answer.stderr.split())


def test_below_the_threshold(runner: CliRunner, job: StandInJob, log: Path) -> None:
    """--fail-under not met: the report is printed, exit 1."""
    job.exit_code = 1
    answer = runner.invoke(app, ["report", "completeness", str(log), "--fail-under", "100"])
    assert (answer.exit_code, answer.stdout) == (1, "a report\n")


def test_copies_elsewhere_are_left_to_spark(runner: CliRunner, job: StandInJob, log: Path) -> None:
    """A URI is handed on as the directories of its tables; local logs are staged beside it."""
    answer = runner.invoke(app, ["report", "completeness", str(log), "s3a://bucket/logs"])
    assert answer.exit_code == 0, answer.output
    assert job.logs is not None
    assert job.logs.updates[-1] == "s3a://bucket/logs/v1/updates"
    assert job.logs.events[-1] == "s3a://bucket/logs/v1/events"
    assert len(job.logs.updates) == 3


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    """A local S3 server with the bucket `nodes`."""
    with local_s3() as server:
        server.make_bucket("nodes")
        yield server


def ship(log: Path, uri: str) -> int:
    """Copy the sealed files of a log to a store, and return how many they are."""
    names = [str(path.relative_to(log)) for path in (log / "v1").rglob("*.parquet")]
    for name in names:
        ObjectStore(uri).put(name, (log / name).read_bytes())
    return len(names)


def test_whether_open_segments_are_there_is_told(runner: CliRunner, job: StandInJob, log: Path, tmp_path: Path) -> None:
    """Where a node writes, its log ends now; of a copy of its sealed files nobody knows."""
    shutil.copytree(log, copy := tmp_path / "copy")
    shutil.rmtree(copy / "open")
    found = []
    for places in ([log], [copy], [log, copy], [log, "s3a://bucket/logs"]):
        runner.invoke(app, ["report", "completeness", *map(str, places)])
        assert job.logs is not None
        found.append(job.logs.sealed_only)
    assert found == [False, True, True, True]


def test_what_nodes_shipped_is_fetched(runner: CliRunner, job: StandInJob, log: Path, s3: LocalS3) -> None:
    """The URI of `log.ship.to` is given like a directory; beside the log itself no file is read twice."""
    uri = s3.uri("nodes/site")
    assert ship(log, uri) == 4
    for given in ([uri], [uri, str(log), uri]):
        answer = runner.invoke(app, ["report", "lag", *given])
        assert answer.exit_code == 0, answer.output
        assert job.logs is not None
        assert job.logs.directories == tuple(given)
        assert (len(job.logs.updates), len(job.logs.events)) == (2, 2)
        assert job.files_were_there
    on_cluster = ["s3://nodes/site", "--master", "spark://127.0.0.1:7077"]
    assert runner.invoke(app, ["report", "lag", *on_cluster]).exit_code == 0
    assert job.logs is not None
    assert job.logs.updates == ("s3://nodes/site/v1/updates",), "a cluster reads it itself"
    answer = runner.invoke(app, ["report", "lag", s3.uri("nodes/elsewhere")])
    assert answer.exit_code == 5
    assert "there is no replication log in s3://nodes/elsewhere" in answer.stderr


def test_logs_below_a_uri_are_fetched(runner: CliRunner, job: StandInJob, log: Path, s3: LocalS3) -> None:
    """Each node may ship to a place of its own; a file that is in two of them counts once, and a note names both."""
    for place in ("hub", "site-1/edge-1"):
        ship(log, s3.uri(f"nodes/several/{place}"))
    answer = runner.invoke(app, ["report", "lag", s3.uri("nodes/several")])
    assert answer.exit_code == 0, answer.output
    assert job.logs is not None
    assert job.logs.directories == (s3.uri("nodes/several"),)
    assert (len(job.logs.updates), len(job.logs.events)) == (2, 2)
    assert job.files_were_there
    note = f"note: below {s3.uri('nodes/several')} are 2 logs of node {{}}: hub, site-1/edge-1\n"
    assert [note.format(node) in answer.stderr for node in ("edge-1", "hub")] == [True, True]


@pytest.mark.parametrize("name", ["summary", "completeness", "all"])
def test_the_file_of_the_trend_reaches_the_job(
    runner: CliRunner, job: StandInJob, log: Path, tmp_path: Path, name: str
) -> None:
    """Of each report that has answers."""
    runner.invoke(app, ["report", name, str(log), "--trend", str(tmp_path / "trend.jsonl")])
    assert job.options.trend_path == tmp_path / "trend.jsonl"


def test_uris_are_left_to_spark(
    runner: CliRunner, job: StandInJob, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they were given; no directory named `s3a:` comes to be where the command was run."""
    monkeypatch.chdir(tmp_path)
    places = {"--trend": "s3a://b/t.jsonl", "--json": "s3a://b/r.json", "--html": "s3a://b/r.html"}
    answer = runner.invoke(app, ["report", "summary", str(log), *(part for pair in places.items() for part in pair)])
    assert answer.exit_code == 0, answer.output
    assert [job.options.trend_path, job.options.json_path, job.options.html_path] == list(places.values())
    assert not (tmp_path / "s3a:").exists()


def test_failed_report(runner: CliRunner, job: StandInJob, log: Path) -> None:
    """What the job says is printed with its hint: exit 5."""
    job.error = ReportError("no reference", hint="Give --reference")
    answer = runner.invoke(app, ["report", "completeness", str(log)])
    assert (answer.exit_code, answer.stdout) == (5, "")
    assert answer.stderr == "error: no reference\n  Give --reference\n"


@pytest.mark.parametrize(
    ("place", "problem", "hint"),
    [
        ("nowhere", "nowhere does not exist", "log.directory"),
        ("empty", "empty is empty", "mounted"),
        ("notes", "notes is not the directory of a replication log, and none is below it", "log.directory"),
        ("notes/a.txt", "notes/a.txt is a file, and not a directory", "log.directory"),
        ("edge-*/log", "edge-*/log is a pattern, and no directory has that name", "Write it without quotes"),
    ],
)
@pytest.mark.parametrize("command", [["report", "completeness"], ["log", "stat"], ["log", "verify"], ["log", "show"]])
def test_not_a_log(
    runner: CliRunner,
    job: StandInJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    place: str,
    problem: str,
    hint: str,
) -> None:
    """Each mistake has its message and its remedy, before Spark is started."""
    monkeypatch.chdir(tmp_path)
    for directory in ("empty", "notes", "edge-1/log/open"):
        Path(directory).mkdir(parents=True)
    Path("notes/a.txt").touch()
    answer = runner.invoke(app, [*command, place])
    assert (answer.exit_code, answer.stdout) == (5, "")
    assert answer.stderr.startswith(f"error: {problem}\n")
    assert hint in answer.stderr
    assert job.logs is None


def test_a_directory_above_the_logs_of_several_nodes(runner: CliRunner, job: StandInJob, tmp_path: Path) -> None:
    """The job gets what it gets of these logs; rows of a copy count once, and a note names both places."""
    hub, edge = tmp_path / "var/hub/replication-log", tmp_path / "var/edge/replication-log"
    write_primary_log(hub, updates=20)
    write_secondary_log(edge, updates=20)
    answer = runner.invoke(app, ["report", "lag", str(tmp_path / "var")])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert job.logs is not None
    assert job.files_were_there
    assert job.logs.directories == (str(edge), str(hub))
    assert [len(files) for files in (job.logs.updates, job.logs.events)] == [2, 2]
    assert not job.logs.sealed_only
    shutil.copytree(hub, tmp_path / "var/mirror")
    answer = runner.invoke(app, ["report", "lag", str(tmp_path / "var")])
    assert answer.exit_code == 0
    assert f"note: below {tmp_path}/var are 2 logs of node hub: {hub}, {tmp_path}/var/mirror\n" in answer.stderr
    assert [len(files) for files in (job.logs.updates, job.logs.events)] == [2, 2]


@pytest.mark.parametrize("command", ["summary", "traffic"])
def test_pyspark_missing(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str) -> None:
    """Without pyspark: exit 4 and the command that installs it, before the logs are looked at."""
    monkeypatch.setattr("fanout.reports.spark.importlib.util.find_spec", lambda name: None)
    answer = runner.invoke(app, ["report", command, str(tmp_path)])
    assert (answer.exit_code, answer.stdout) == (4, "")
    assert "-m pip install 'fanout-mqtt[report]'" in answer.stderr


@pytest.mark.parametrize("options", [["--settle", "-1"], ["--fail-under", "101"], ["--depth", "-1"], ["--depth", "x"]])
def test_wrong_options(runner: CliRunner, job: StandInJob, log: Path, options: list[str]) -> None:
    """Numbers out of range are told before anything is read."""
    assert runner.invoke(app, ["report", "completeness", str(log), *options]).exit_code == 2
    assert job.logs is None


@pytest.mark.parametrize("name", ["completeness", "traffic"])
def test_a_window_that_is_none(runner: CliRunner, job: StandInJob, log: Path, name: str) -> None:
    """What is no time, and an end that is not after the begin, are told with the option and an example."""
    for option in ("--since", "--until"):
        answer = runner.invoke(app, ["report", name, str(log), option, "noon"])
        assert answer.exit_code == 2
        for part in (option, "'noon' is not a time", "2026-02-02T14:00", "2h"):
            assert part in " ".join(answer.stderr.split()), part
    for times in (("2026-02-02", "2026-02-02"), ("2026-02-02", "2026-02-01"), ("1h", "2h")):
        answer = runner.invoke(app, ["report", name, str(log), "--since", times[0], "--until", times[1]])
        assert answer.exit_code == 2
        for part in ("--until", "is not later than --since", "as in --since 2h --until 1h"):
            assert part in " ".join(answer.stderr.split()), part
    assert job.logs is None


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "options"), [("Sail", []), ("Spark", ["--master", "local[1]"])])
def test_real_report(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, options: list[str]
) -> None:
    """The real job on logs of the real writer, on a terminal: two updates are missing, and everything says so.

    What the JVM prints on its standard output, here of its garbage collections, would end `--json -` as JSON. Sail
    needs no Java.
    """
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xlog:gc")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    document, page, metrics = (tmp_path / f"report.{name}" for name in ("json", "html", "prom"))
    if engine == "Sail":
        monkeypatch.setenv("JAVA_HOME", "/nonexistent")
        monkeypatch.setenv("PATH", "/nonexistent")
    arguments = [*options, "--settle", "0", "--json", str(document), "--html", str(page)]
    arguments += ["--metrics", str(metrics)]
    run = run_on_terminal("report", "summary", str(log), *arguments, "--fail-under", "99")
    assert run.exit_code == 1, run.text
    found = json.loads(document.read_text())
    (target,) = found["targets"]
    assert (target["stamped"]["expected"], target["stamped"]["missing"]) == (20, 2)
    (node,) = found["summary"]["nodes"]
    assert [node[name] for name in ("missing", "going_on", "topics_behind")] == [2, False, 2]
    since, until = (datetime.fromisoformat(node[name]) for name in ("first_missing", "last_missing"))
    published = datetime.fromtimestamp(EPOCH / 1_000_000, UTC)
    assert published < since < until < published + timedelta(milliseconds=100)
    assert until - since == timedelta(milliseconds=1)
    assert [one["topic"] for one in found["missing_topics"]["listed"]] == ["plant/line/3", "plant/line/4"]
    screen = run.text.rpartition(f"starting {engine}")[2]
    assert "NOT COMPLETE" in screen
    for said in (r"edge-1 +90\.0\s% +2 +\d\d:\d\d:\d\d", r"unexplained\s2", r"edge-1 +plant/line/3 +1 "):
        assert re.search(said, screen), said
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    families = text_string_to_metric_families(metrics.read_text())
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert (samples["fanout_report_missing_updates"].labels, samples["fanout_report_missing_updates"].value) == (
        {"node": "edge-1"},
        2,
    )
    assert samples["fanout_report_answer"].labels["answer"] == "not_complete"
    assert f"starting {engine}" in run.text, "the stage that runs is shown"
    assert re.search(r"(identity|value|topics|lag), [0-9]+ rows", run.text)
    assert max(map(len, run.lines)) <= 80
    assert "[gc" not in run.text


def test_the_schema_is_printed_without_spark(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads reports elsewhere needs neither pyspark nor Java to know what is in them."""
    monkeypatch.setattr("fanout.reports.spark.importlib.util.find_spec", lambda name: None)
    answer = runner.invoke(app, ["report", "schema"])
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert "all" in json.loads(answer.stdout)["properties"]["report"]["enum"]
