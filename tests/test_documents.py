"""What the documents quote exists: links, configurations, keys, commands, modules, metrics, paths.

Parts that pages explain one by one have tests of their own beside the code (`tests/cli/test_documentation.py`,
`tests/access/test_documentation.py`, `tests/api/test_metrics.py`, `tests/config/test_settings.py`).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from bench.__main__ import command_line
from fanout.api.app import ACTIONS, ENDPOINTS
from fanout.api.browse.top_metrics import TOP_METRIC
from fanout.api.metrics import METRICS
from fanout.api.models import (
    AccessStatus,
    ArchiveStatus,
    LinkDetail,
    LogStatus,
    NodeStatus,
    SelectorDetail,
    ServerStatus,
)
from fanout.cli.app import app
from fanout.config import parse_config
from fanout.config.loading import parse_tables
from fanout.config.translation import SECTIONS, section_keys
from fanout.errors import ConfigError
from fanout.mqtt.breaches import Deviation, SkipReason
from fanout.reports.metrics import REPORT_METRICS

ROOT = Path(__file__).parent.parent
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
COMMAND_LINE: Any = typer.main.get_command(app)
FILES_WITH_COMMANDS = ("configs/*.toml", "configs/haproxy.cfg", "docker/*")
SECTION = "|".join(section for section in SECTIONS if section and "." not in section)
GROWING = {"CHANGELOG.md", "docs/reference/mqtt-support.md"}
PAGE_BYTES_MAX = 20_500
HISTORIC = re.compile(r"CHANGELOG\.md|docs/decisions/|docs/reference/mqtt-support\.md")
"""Pages whose words stay as they were written, or are those of the specification."""
CLAUSE = re.compile(r"(What|Who|Whoever|Whose|Whether|Where|Wherever|That|Which)\b(?!.*\?$)")
BEHIND = re.compile(
    r"\bbehind\b(?! (?:HAProxy|an?|one|is it)\b)(?<![*-]behind)(?<!(?:is| s) behind)(?<!(?:are|far) behind)"
)
"""Of neither place nor lag."""
SHELL = {".", "break", "cat", "cd", "chmod", "done", "echo", "exit", "for", "grep", "kill", "mkdir"} | {
    *("printf", "read", "rm", "sleep", "tar", "wait"),
}
RUN_BY = {
    "./scripts/demo": "tests/acceptance/test_whole_runs.py",
    "/usr/sbin/haproxy": "tests/acceptance/test_ten_minutes.py",
    "curl": "tests/acceptance/test_tutorials.py",
    "haproxy": "tests/config/test_haproxy_example.py",
    "helm": "tests/config/test_kubernetes.py",
    "kubeconform": "tests/config/test_kubernetes.py",
    "mosquitto_pub": "tests/acceptance/test_ten_minutes.py",
    "mosquitto_sub": "tests/server/test_clients.py",
    "openssl": "tests/acceptance/test_tls.py",
    "pip": "tests/test_installation.py",
    "prometheus": "tests/acceptance/test_ten_minutes.py",
    "promtool": "tests/config/test_docker.py",
    "sed": "tests/config/test_docker.py",
}
"""Other programs in blocks of pages, and a file with a test that runs them in the same way."""
NOT_RUN = {
    **dict.fromkeys(("./scripts/test", "scripts/setup", "mypy", "ruff"), "runs the tests, or runs before them"),
    **dict.fromkeys(("apt-get", "install", "sudo", "systemctl", "useradd"), "changes the machine"),
    **dict.fromkeys(("aws", "docker", "git", "kubectl"), "needs a server of others"),
    **dict.fromkeys(("jq", "start-the-load-balancer"), "takes what other tests look at"),
    **dict.fromkeys(("python", "python3", "/opt/fanout/bin/pip"), "makes the environment that the tests run in"),
    **dict.fromkeys(("pack/bin/pip", "pack/bin/venv-pack", "venv"), "packs an environment for a cluster"),
    **dict.fromkeys(("pytest", "tests.conformance"), "runs suites of others, before a release"),
}
"""Programs in blocks that no test runs, and why."""
READ_BY = {
    "conf": ("tls-to-the-primary.md", "tests/acceptance/test_tls.py"),
    "ini": ("report-on-many-logs.md", "tests/config/test_units.py"),
    "java": ("jms.md", "tests/amqp/test_qpid_jms.py"),
    "json": ("access.md", "tests/access/test_documentation.py"),
    "yaml": ("alert.md", "tests/config/test_monitoring.py"),
}
"""Languages of other blocks, their page, and the file with a test that reads them; those of HAProxy are read on every
page, as are `sh`, `toml` and `python`."""
OF_OTHERS = {"max_outgoing_packet_count"}
"""Keys of other programs that pages name."""


def on_every_page(check: Callable[[str], None]) -> Callable[[], None]:
    """Make a test of what holds for each page; a failure names the page."""

    def test() -> None:
        for page in PAGES:
            try:
                check(page)
            except Exception as error:
                error.add_note(f"on {page}")
                raise

    test.__doc__ = check.__doc__
    return test


def blocks(page: str, *languages: str) -> list[str]:
    """Return the fenced blocks of a page in these languages."""
    found = re.findall(r"^( *)```(\w+)\n(.*?)^\1```$", PAGES[page], re.DOTALL | re.MULTILINE)
    return [text for _, language, text in found if language in languages]


def prose(page: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def quoted(page: str) -> list[str]:
    """Return what stands in backticks in the text of a page."""
    return [" ".join(each.split()) for each in re.findall(r"`([^`]+)`", prose(page))]


def anchors(path: Path) -> set[str]:
    """Return the anchors that a Markdown page has: its headings, as GitHub spells them in a link."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page: of its paragraphs, list items and cells of tables."""
    lines = [line for line in prose(page).splitlines() if not line.startswith(("#", "    "))]
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )|\|", "\n".join(lines)):
        text = re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(block.split()))
        yield from re.split(r"(?<=[.:!?]) (?=[A-Z`*\[])", text)


@on_every_page
def test_sentences_begin_with_their_noun(page: str) -> None:
    """No clause is the subject of a sentence, and "behind" is a place: what follows in time comes after."""
    if not HISTORIC.match(page):
        found = [one for one in sentences(page) if CLAUSE.match(one) or BEHIND.search(one)]
        assert found == [], "begin with the noun; write after for time"


@on_every_page
def test_every_link_leads_somewhere(page: str) -> None:
    """The file is there, and so is the heading."""
    here = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (here.parent / name) if name else here
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@on_every_page
def test_a_page_can_be_read_at_once(page: str) -> None:
    """A longer one has more than one purpose; the changelog and what is generated grow with the project."""
    assert page in GROWING or len(PAGES[page].encode()) <= PAGE_BYTES_MAX


def test_the_index_lists_every_page() -> None:
    """Each page of the folders by purpose, and the glossary."""
    listed = set(re.findall(r"\]\(([^)#]+\.md)", PAGES["docs/README.md"]))
    pages = {str(Path(page).relative_to("docs")) for page in PAGES if page.startswith("docs/")}
    assert {page for page in pages if not page.startswith("decisions/")} - {"README.md"} == listed


@on_every_page
def test_every_configuration_loads(page: str) -> None:
    """As it is when it is whole; a part of one beside the least that a node has."""
    for text in blocks(page, "toml"):
        tables = tomllib.loads(text)
        if "node" in tables:
            parse_config(text, path=page)
        else:
            tables.setdefault("server", {})
            parse_tables({"node": {"id": "edge-1"}, **tables}, path=page)


def settings_in(page: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what stands on a page as `key = value` or `[section] key = value`: the section, or "", and the table."""
    for text in quoted(page):
        shown = re.fullmatch(r"(?:\[+([a-z.]+)\]+ )?([a-z_]+ = .+)", text)
        if shown is not None:
            try:
                yield shown[1] or "", tomllib.loads(shown[2])
            except tomllib.TOMLDecodeError:
                continue  # a pattern, not a setting


def in_its_place(section: str, key: str, value: object) -> dict[str, Any]:
    """Return a configuration with one key, and what else it needs."""
    selector: dict[str, Any] = {"filter": "plant/#"}
    link: dict[str, Any] = {"name": "plant", "primary": "mqtts://elsewhere", "selector": [selector]}
    listener: dict[str, Any] = {"address": "mqtt://127.0.0.1:0"}
    rule: dict[str, Any] = {"filter": "plant/#", "allow": "all"}
    reserved: dict[str, Any] = {"user": "links"}
    quota: dict[str, Any] = {}
    tables: dict[str, dict[str, Any]] = {
        "node": {"id": "edge-1"},
        "server": {"listener": [listener]},
        "http": {},
        "pool": {},
        "log": {"ship": {"to": "s3://bucket"}},
        "access": {
            "rule": [rule],
            "reserved": [reserved],
            "quota": [quota],
            "http": {"url": "http://127.0.0.1:9000/"},
        },
        "retained": {},
    }
    of = {
        **tables,
        "log.ship": tables["log"]["ship"],
        "access.http": tables["access"]["http"],
        "access.quota": quota,
        "access.reserved": reserved,
        "access.rule": rule,
        "server.listener": listener,
        "link": link,
        "link.selector": selector,
    }
    if section == "sessions":  # which are refused in a pool, and beside values in memory
        del tables["pool"]
        tables["retained"]["storage"] = "disc"
        tables["sessions"] = of[section] = {}
    if key == "max_age_s":  # which a link of a member of a pool has not
        del tables["pool"]
    of[section][key] = value
    return {**tables, "link": [link]}


@on_every_page
def test_every_setting_is_possible(page: str) -> None:
    """A `key = value` is a key of a section, of the one that is named with it, and may have that value."""
    for named, table in settings_in(page):
        [(key, value)] = table.items()
        if key in OF_OTHERS:
            continue
        sections = [one for one in SECTIONS if one and key in section_keys(one) and named in ("", one)]
        assert sections, key
        faults: list[str] = []
        for section in sections:
            try:
                parse_tables(in_its_place(section, key, value), path=page)
                break
            except ConfigError as error:
                faults.append(str(error))
        assert len(faults) < len(sections), faults


@on_every_page
def test_every_key_exists(page: str) -> None:
    """`section.key` in backticks, and in the labels of metrics, is a key of that section."""
    for section, key in re.findall(rf"[`\"]((?:{SECTION})(?:\.[a-z]+)?)\.([a-z_]+)[`\" ]", prose(page)):
        assert section in SECTIONS, f"{section}.{key}"
        assert key in section_keys(section), f"{section}.{key}"


@on_every_page
def test_every_section_exists(page: str) -> None:
    """`[section]` and `[[section]]` in backticks, each with the brackets that it has in a file."""
    lists = {"server.listener", "access.quota", "access.reserved", "access.rule", "link", "link.selector"}
    for opening, section in re.findall(r"`(\[+)([a-z]+(?:\.[a-z]+)*)\]+", prose(page)):
        if section == "s3":  # an extra of a package
            continue
        assert section in SECTIONS, section
        assert len(opening) == (2 if section in lists else 1), section


def test_the_table_of_limits_has_the_defaults() -> None:
    """Key and default of each row are those of `[server]`."""
    table = PAGES["docs/reference/limits.md"].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", table, re.MULTILINE)
    assert len(rows) > 10
    defaults = section_keys("server")
    assert {key: float(shown.replace(",", "")) for key, shown in rows} == {key: defaults[key] for key, _ in rows}


def test_the_table_of_lost_sessions_has_the_defaults() -> None:
    """Key and default of each row are those of `[[link]]`."""
    table = PAGES["docs/reference/links.md"].partition("\n## When a session is lost\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^ `]+)`? \|", table, re.MULTILINE))
    defaults = section_keys("link")
    assert len(rows) == 3
    assert {key: tomllib.loads(f"value = {shown}")["value"] for key, shown in rows.items()} == {
        key: defaults[key] for key in rows
    }


def test_the_comparison_with_a_bridge_has_the_figures_of_the_performance_page() -> None:
    """Each with a decimal point or a unit stands there, so a new measurement changes both."""
    text = PAGES["docs/explanation/bridges.md"].partition("\n## Measured\n")[2]
    figures = re.findall(r"\d+\.\d+(?= m?s)|\d+(?= bytes)|(?<=secondary )\d+", text)
    assert len(figures) == 6
    assert [one for one in figures if one not in PAGES["docs/reference/performance.md"]] == []


def commands_in(text: str, *programs: str) -> Iterator[list[str]]:
    """Yield the words of each command of these programs in lines of a shell, without the program."""
    yield from (words[1:] for words in shell_commands(text) if words[0] in programs)


def shell_commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command in lines of a shell; of `python -m` those behind these words."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(re.sub(r"(^|\s)#.*", "", line), posix=True, punctuation_chars="|&;")
        lexer.whitespace_split, lexer.commenters = True, ""
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word[0] in "|&;":
                while words and ("=" in words[0] or words[0] == "do"):
                    inner = words[0].partition("=$(")[2]
                    words = [inner, *words[1:]] if inner else words[1:]
                if words[:2] == ["python", "-m"]:
                    words = words[2:]
                if words := nested(words):
                    yield list(itertools.takewhile(lambda each: not re.match(r"\d*[<>]", each), words))
                words = []
            elif words or not word.isdecimal():  # of "2>&1"
                words.append(word)


def nested(words: list[str]) -> list[str]:
    """Return a command of fanout by its name alone: behind a prompt, a path, `kubectl exec`, or `spark-submit`."""
    if words[:1] == ["$"] or words[:2] == ["kubectl", "exec"]:
        words = words[words.index("--" if words[0] == "kubectl" else "$") + 1 :]
    elif words[:1] == ["spark-submit"]:
        entry = min(words.index(one) for one in ("$ENTRY", "entry.py") if one in words)
        words = ["fanout", *words[entry + 1 :]]
    return ["fanout", *words[1:]] if words and words[0].endswith("/fanout") else words


def parse(words: list[str]) -> None:
    """Have the command line read the words as a user's, without doing what they say."""
    group, context = COMMAND_LINE, None
    while hasattr(group, "commands"):
        name, command, words = group.resolve_command(group.context_class(group, parent=context), words)
        if hasattr(command, "commands"):
            context, group = group.context_class(group, info_name=name, parent=context), command
            continue
        with command.make_context(name, list(words)):
            return


@on_every_page
def test_every_command_of_a_block_is_accepted(page: str) -> None:
    """The command line takes it as printed, beside its output too."""
    shown = re.findall(r"^\$ .+$", PAGES[page], re.MULTILINE)
    for block in (*blocks(page, "sh"), *shown):
        for words in commands_in(block, "fanout"):
            parse(words)


@on_every_page
def test_every_program_of_a_block_is_run_or_known_not_to_be(page: str) -> None:
    """Other programs than fanout's own, whose command lines are read above."""
    for block in blocks(page, "sh"):
        text = re.sub(r"<<'?END'?\n.*?\nEND\n", "\n", block, flags=re.DOTALL)
        for program, *_ in shell_commands(text):
            assert program in {"fanout", "bench", *SHELL, *RUN_BY, *NOT_RUN}, program


def test_what_runs_a_program_of_a_block_names_it() -> None:
    """And nothing that is not run is run by a test after all."""
    assert not RUN_BY.keys() & NOT_RUN.keys()
    for program, file in RUN_BY.items():
        assert Path(program).name in (ROOT / file).read_text(), program


def test_every_command_beside_the_configurations_is_accepted() -> None:
    """In comments, in the image, and in units of systemd and Kubernetes."""
    found = []
    for pattern in FILES_WITH_COMMANDS:
        for path in sorted(ROOT.glob(pattern)):
            lines = re.findall(r"(?:with|by): (fanout .+)$", path.read_text(), re.MULTILINE)
            found += [words for line in lines for words in commands_in(line, "fanout")]
    images = re.findall(r"^CMD (\[.+\])$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    found += [tomllib.loads(f"words = {image}")["words"] for image in images if "--help" not in image]
    compose = (ROOT / "docker" / "compose.yaml").read_text()
    found += [line.split() for line in re.findall(r"\bfanout ((?:secondary|report) [^;'\n]+)", compose)]
    for unit in sorted(ROOT.glob("configs/*.service")):
        text = unit.read_text().replace("%i", "1")
        found += [line.split() for line in re.findall(r"^ExecStart=\S+/fanout (.+)$", text, re.MULTILINE)]
    for manifest in sorted(ROOT.glob("configs/kubernetes/*.yaml")):
        lines = re.findall(r"\bargs: \[(.+)\]", manifest.read_text())
        found += [[word.strip('"') for word in line.split(", ")] for line in lines]
    assert len(found) >= 7
    for words in found:
        parse(words)


@on_every_page
def test_every_command_in_the_text_exists(page: str) -> None:
    """`fanout ...` in backticks begins with the words of a command and has only its options."""
    for text in quoted(page):
        words = text.split("&&")[0].split()
        if words[:1] != ["fanout"] or len(words) == 1 or words[1] in ("version", "COMMAND"):
            continue
        command, is_value = COMMAND_LINE, False
        for word in words[1:]:
            if is_value:
                is_value = False
            elif word.startswith("-") and word != "-":  # "-" alone is standard input
                command = getattr(command, "commands", {}).get("show", command)  # the one that may be left out
                options = {name: param for param in command.params for name in param.opts}
                assert word in options or word in ("--help", "--install-completion"), text
                is_value = word in options and not getattr(options[word], "is_flag", False)
            elif hasattr(command, "commands"):
                assert word in command.commands, text
                command = command.commands[word]


@on_every_page
def test_every_block_has_a_reader(page: str) -> None:
    """A block in another language than the shell's is read by a test, which names its page."""
    for language in re.findall(r"^ *```(\w+)$", PAGES[page], re.MULTILINE):
        if language not in {"sh", "toml", "python", "haproxy"}:
            name, file = READ_BY[language]
            assert Path(page).name == name
            assert name in (ROOT / file).read_text()


@on_every_page
def test_every_block_of_python_is_valid(page: str) -> None:
    """It compiles, and what it imports of fanout is there."""
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                module = importlib.import_module(node.module)
                assert [one.name for one in node.names if not hasattr(module, one.name)] == []


def test_each_file_for_operators_is_named_by_a_test() -> None:
    """Of `configs` and `docker`: what no test reads breaks unseen."""
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    files = [path for folder in ("configs", "docker") for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert len(files) > 20
    assert [str(path) for path in files if path.name not in tests and not path.name.endswith("-token")] == []


@on_every_page
def test_every_bench_is_accepted(page: str) -> None:
    """`python -m bench ...`, in a block or in the text, with its options; words in capitals stand for a value."""
    parser = command_line()
    texts = [*blocks(page, "sh"), *(text for text in quoted(page) if text.startswith("python -m bench"))]
    for text in texts:
        for words in commands_in(text.replace("[", "").replace("]", ""), "bench"):
            if words and words != ["NAME"]:
                numbered = ["7" if re.fullmatch(r"[A-Z]", word) else word for word in words]
                assert isinstance(parser.parse_args(numbered), argparse.Namespace)


@on_every_page
def test_every_module_exists(page: str) -> None:
    """`fanout.part.module`, or a name in one."""
    for text in quoted(page):
        if not re.fullmatch(r"fanout(\.\w+)+", text):
            continue
        try:
            importlib.import_module(text)
        except ModuleNotFoundError:
            module, _, name = text.rpartition(".")
            assert hasattr(importlib.import_module(module), name), text


@on_every_page
def test_every_metric_exists(page: str) -> None:
    """Also in alerts and in sentences; the labels that are shown are its own."""
    metrics = {spec.name: spec.labels for spec in METRICS} | {
        name: labels for name, (_, labels) in REPORT_METRICS.items()
    }
    metrics |= dict([TOP_METRIC])
    for name, labels in re.findall(r"\b(fanout_[a-z_]+)(?:\{([^}]*)\})?", PAGES[page]):
        if name == "fanout_fault":
            continue
        assert name in metrics, name
        assert {label.partition("=")[0].strip() for label in labels.split(",") if label} <= set(metrics[name]), name


@on_every_page
def test_every_counter_of_a_document_exists(page: str) -> None:
    """`..._total` in backticks, when it is not a metric, is a field of a document over HTTP."""
    fields = {
        field
        for model in (NodeStatus, LinkDetail, SelectorDetail, ServerStatus, AccessStatus, LogStatus, ArchiveStatus)
        for field in model.model_fields
    }
    for name in re.findall(r"`([a-z]\w+_total)`", prose(page)):
        assert name.startswith(("fanout_", "process_")) or name in fields, name


@on_every_page
def test_every_http_path_exists(page: str) -> None:
    """`/v1/...` and the like in backticks or in a command."""
    for path in re.findall(r"(?<![\w.*])(/(?:v\d/|livez|readyz|metrics|openapi)[\w/{}.-]*)", PAGES[page]):
        assert path.rstrip(".") in (*ENDPOINTS, *ACTIONS), path


def test_the_pages_name_no_file_that_is_not_there() -> None:
    """A path of the repository in backticks exists."""
    for page in PAGES:
        for text in quoted(page):
            of_another_suite = page == "docs/reference/conformance.md" and text.startswith("tests/test_")
            if re.fullmatch(r"(docs|configs|docker|scripts|tests|bench|locks)/[\w./-]+", text) and not of_another_suite:
                assert (ROOT / text).exists(), f"{page}: {text}"


@on_every_page
def test_the_modules_that_a_page_names_exist(page: str) -> None:
    """`fanout.part.module`, or a name in it: pages follow when modules move."""
    missing = []
    for name in set(re.findall(r"`(fanout(?:\.[A-Za-z_]\w*)+)`", PAGES[page])):
        places = [ROOT.joinpath(*name.split(".")), ROOT.joinpath(*name.split(".")[:-1])]
        files = [
            file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.exists()
        ]
        is_module = any(file.stem == places[0].name or file.parent == places[0] for file in files)
        if not is_module and not any(re.search(rf"\b{places[0].name}\b", file.read_text()) for file in files):
            missing.append(name)
    assert missing == []


def test_each_reason_to_skip_and_each_breach_is_on_its_page() -> None:
    """The page on what a link tolerates has every word that is counted."""
    page = PAGES["docs/reference/tolerance.md"]
    assert [word for word in (*SkipReason, *Deviation) if f"`{word}`" not in page] == []
