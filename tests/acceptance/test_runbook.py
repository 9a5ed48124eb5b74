"""Every line of `docs/how-to/runbook.md`: its situation is planted, its command run, and the output compared."""

from __future__ import annotations

import re
import resource
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.processes import run_fanout
from tests.support.clients import slow_reader
from tests.support.mosquitto import Mosquitto, find_mosquitto, free_port, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "runbook.md"
RULES = "topic readwrite #\ntopic read $SYS/#\nuser mute\ntopic read #\ntopic read $SYS/#\ntopic write plant/gone/#\n"
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table."""

    symptom: str
    command: str
    shows: tuple[str, ...]
    """The texts in code of the third column; each of them has to be in the output."""


def lines_of(page: str) -> list[Line]:
    """Return the lines of the table of a page."""
    rows = [row.strip("|").split("|") for row in page.splitlines() if row.startswith("|")][2:]
    found = []
    for symptom, command, shows, _ in rows:
        (run,) = _CODE.findall(command)
        found.append(Line(symptom.strip(), run, tuple(_CODE.findall(shows))))
    return found


LINES = lines_of(PAGE.read_text())


@dataclass
class House:
    """What the situations are planted in: a primary, a node that is well, and one whose links are not."""

    mosquitto: Mosquitto
    well: LiveNode
    troubled: LiveNode
    """Its links: `absent` (nothing listens), `refused` (a wrong password), `mute` (no right to the control topic)."""
    nodes: Nodes

    def allow(self, rules: str) -> None:
        """Put other access rules in force at the primary."""
        (self.nodes.directory / "rules").write_text(rules)
        assert self.mosquitto.process is not None
        self.mosquitto.process.send_signal(signal.SIGHUP)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Return the servers, with one retained value."""
    directory = tmp_path_factory.mktemp("runbook")
    rules, users, secret = directory / "rules", directory / "users", directory / "secret"
    rules.write_text(RULES)
    users.touch()
    for user in ("refused", "mute"):
        subprocess.run(["mosquitto_passwd", "-b", str(users), user, user], check=True, capture_output=True)
    secret.write_text("mute\n")
    nodes = Nodes(directory)
    settings = [f"acl_file {rules}", f"password_file {users}", "allow_anonymous true"]

    def trouble(port: int, name: str, keys: str = "", *, heartbeat_s: float = 0.5) -> str:
        settings = f"{QUICK}heartbeat_s = {heartbeat_s}\n{keys}"
        return link(port, selector(f"{name}/#"), name=name, settings=settings)

    def as_user(name: str) -> str:
        return f'username = "{name}"\npassword_file = "{secret}"\n'

    with Mosquitto(directory, settings=settings) as mosquitto:
        with publisher(mosquitto.port) as client:
            publish_all(client, [("plant/a", b"1")])
        try:
            troubled = nodes.secondary(
                trouble(free_port(), "absent"),
                trouble(mosquitto.port, "refused", as_user("refused")),
                trouble(mosquitto.port, "mute", as_user("mute") + 'min_evidence = "marker"\n'),
                name="troubled",
            )
            well = nodes.secondary(
                # It is stalled for three heartbeats, then it connects again: a command has to start and ask meanwhile.
                trouble(mosquitto.port, "plant", heartbeat_s=2.0),
                name="well",
                settings="write_buffer_high_bytes = 65536\nwrite_buffer_low_bytes = 16384\n",
            )
            troubled.start()
            well.started()
            yield House(mosquitto, well, troubled, nodes)
        finally:
            nodes.end()


@contextmanager
def at_well(house: House) -> Iterator[LiveNode]:
    """Ask the node that is well."""
    yield house.well


@contextmanager
def frozen_primary(house: House) -> Iterator[LiveNode]:
    """Stop the primary's process until the link has noticed."""
    assert house.mosquitto.process is not None
    house.mosquitto.process.send_signal(signal.SIGSTOP)
    try:
        wait_until_blocking(lambda: house.well.link_state("plant") == "stalled", what="the stall")
        yield house.well
    finally:
        house.mosquitto.process.send_signal(signal.SIGCONT)
        house.well.wait_until_ready()


@contextmanager
def full_disk(house: House) -> Iterator[LiveNode]:
    """Let no file of the node grow until its log has noticed."""
    assert house.well.process is not None
    pid = house.well.process.pid
    sizes = [file.stat().st_size for file in house.well.log_directory.rglob("*") if file.is_file()]
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (max(sizes) + 4096, hard))
    try:
        with publisher(house.mosquitto.port) as client:
            publish_all(client, [(f"plant/disk/{number}", b"x" * 20_000) for number in range(10)])
        wait_until_blocking(lambda: _alarm(house.well), what="the alarm")
        yield house.well
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        wait_until_blocking(lambda: not _alarm(house.well), what="the log being written again")


@contextmanager
def hidden_branch(house: House) -> Iterator[LiveNode]:
    """Hide a branch of two topics from the link of the node that is well until it has noticed."""

    def is_noticed(node: LiveNode) -> bool:
        run_fanout("audit", "plant", "--url", node.url)
        return bool(node.link_status("plant")["unconfirmed"] == len(topics))

    topics = ["plant/gone/1", "plant/gone/2"]
    with publisher(house.mosquitto.port) as client:
        publish_all(client, [(topic, b"1") for topic in topics])
    wait_until_blocking(lambda: set(topics) <= set(read_retained(house.well.port, "plant/#")), what="the new topics")
    house.allow(f"topic deny plant/gone/#\n{RULES}")
    try:
        wait_until_blocking(lambda: is_noticed(house.well), what="the new rules being in force at an audit")
        yield house.well
    finally:
        house.allow(RULES)
        wait_until_blocking(
            lambda: run_fanout("audit", "plant", "--url", house.well.url).returncode == 0, what="the old rules"
        )
        house.well.wait_until_ready()


@contextmanager
def deleted_branch(house: House) -> Iterator[LiveNode]:
    """Delete that branch at the primary while it is hidden."""
    with hidden_branch(house) as node:
        for number in (1, 2):
            message = ["-u", "mute", "-P", "mute", "-q", "1", "-t", f"plant/gone/{number}", "-r", "-n"]
            subprocess.run(["mosquitto_pub", "-p", str(house.mosquitto.port), *message], check=True)
        yield node
        assert "plant/gone/1" not in read_retained(node.port, "plant/#")


@contextmanager
def slow_client(house: House) -> Iterator[LiveNode]:
    """Let the client slow-0 read nothing until messages were conflated."""
    with slow_reader(house.well.port, b"plant/#", qos=0), publisher(house.mosquitto.port) as client:

        def conflated() -> bool:
            publish_all(client, [(f"plant/slow/{number}", b"x" * 40_000) for number in range(10)])
            return bool(house.well.document("/v1/status")["server"]["conflated_total"])

        wait_until_blocking(conflated, what="messages being conflated")
        yield house.well


@contextmanager
def two_brokers(house: House) -> Iterator[LiveNode]:
    """Give a pool of two, of which one replicates another broker."""
    ports = [free_port(), free_port()]

    def member(index: int, primary: int) -> LiveNode:
        peers = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        pool = f'[pool]\nlisten = "127.0.0.1:{ports[index]}"\npeers = [{peers}]\nconverge_after_s = 600.0\n'
        plant = link(primary, selector("plant/#"), name="plant", settings=QUICK)
        return house.nodes.secondary(pool, plant, name=f"member-{index}")

    directory = house.nodes.directory / "elsewhere"
    directory.mkdir()
    with Mosquitto(directory) as elsewhere:
        with publisher(elsewhere.port) as client:
            publish_all(client, [("plant/a", b"0")])
        nodes = [member(0, house.mosquitto.port), member(1, elsewhere.port)]
        try:
            for node in nodes:
                node.start()
            for node in nodes:
                node.wait_until_ready()

            def is_known() -> bool:
                members = nodes[0].document("/v1/pool")["members"]
                return len(members) == 2 and all(one["is_self"] or one["url"] for one in members)

            wait_until_blocking(is_known, what="the other member")
            with publisher(house.mosquitto.port) as client:
                publish_all(client, [("plant/a", b"1")])
            yield nodes[0]
        finally:
            for node in nodes:
                node.stop()


@contextmanager
def node_to_hold(house: House) -> Iterator[LiveNode]:
    """Take the node that is well back afterwards."""
    try:
        yield house.well
    finally:
        run_fanout("undrain", house.well.url)
        house.well.wait_until_ready()


@contextmanager
def held_node(house: House) -> Iterator[LiveNode]:
    """Hold the node that is well."""
    with node_to_hold(house) as node:
        assert run_fanout("drain", "--hold", node.url).returncode == 0
        yield node


@contextmanager
def stopped_node(house: House) -> Iterator[LiveNode]:
    """Give the log of a node that has ended."""
    house.well.stop()
    try:
        yield house.well
    finally:
        house.well.started()


@contextmanager
def node_to_leave(house: House) -> Iterator[LiveNode]:
    """Let the node that is well be started again after it was drained."""
    process = house.well.process
    try:
        yield house.well
    finally:
        assert process is not None
        assert process.wait(30) == 0
        house.well.stop()
        house.well.started()


def trouble_of(name: str) -> Callable[[House], AbstractContextManager[LiveNode]]:
    """Return a situation: one link of the troubled node is alone in the output, in its trouble."""

    @contextmanager
    def situation(house: House) -> Iterator[LiveNode]:
        def is_told() -> bool:
            status = house.troubled.link_status(name)
            return bool(status["last_error"]) if name != "mute" else status["state"] == "live"

        wait_until_blocking(is_told, what=f"the trouble of {name}")
        yield house.troubled

    return situation


SITUATIONS: dict[str, tuple[Callable[[House], AbstractContextManager[LiveNode]], int]] = {
    "is not ready": (trouble_of("absent"), 1),
    "Connection refused": (trouble_of("absent"), 0),
    "Not authorized (0x87)": (trouble_of("refused"), 0),
    "stalled, waits for a heartbeat": (frozen_primary, 1),
    "weaker than min_evidence": (trouble_of("mute"), 1),
    "unknown": (trouble_of("mute"), 0),
    "topic read": (at_well, 0),
    "0 (empty or not readable)": (trouble_of("mute"), 0),
    "equals that of the primary": (at_well, 0),
    "MEMBER FINDING": (two_brokers, 1),
    "has no session at this node": (at_well, 1),
    "CHANGED": (at_well, 0),
    "did not come from the primary": (hidden_branch, 1),
    "REMOVED": (deleted_branch, 0),
    "plant/a": (at_well, 0),
    "state": (at_well, 0),
    "alarm": (full_disk, 0),
    "sound": (stopped_node, 0),
    "SLOW FOR": (slow_client, 0),
    "was sent away": (slow_client, 0),
    "has no faults": (at_well, 0),
    "is held": (node_to_hold, 0),
    "is held no more": (held_node, 0),
    "has ended": (node_to_leave, 0),
    "a link can replicate plant/# from it": (at_well, 0),
}
"""For each line, by the first text that its command shows: what is planted, and the exit code."""


def test_every_line_has_its_situation() -> None:
    """A line that nothing executes is none, and neither is a situation without a line."""
    assert [line.shows[0] for line in LINES] == list(SITUATIONS)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.shows[0])
def test_the_command_shows_what_the_page_says(house: House, line: Line) -> None:
    """Each text in code of its third column, in the situation of its first one."""
    plant, code = SITUATIONS[line.shows[0]]
    with plant(house) as node:
        words = {
            "URL": node.url,
            "LINK": "plant",
            "ID": "slow-0",
            "DIR": str(node.log_directory),
            "FILE": str(house.nodes.directory / f"{node.name}.toml"),
            "PRIMARY": house.mosquitto.address,
        }
        fanout, *arguments = [words.get(word, word) for word in shlex.split(line.command)]
        assert fanout == "fanout"
        answer = run_fanout(*arguments)
    said = " ".join((answer.stdout + answer.stderr).split())
    assert answer.returncode == code, said
    for text in line.shows:
        assert text in said


def _alarm(node: LiveNode) -> bool:
    return bool(node.document("/v1/status")["log"]["alarm"])
