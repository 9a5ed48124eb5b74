"""`fanout explain` with a real primary: each fault is planted, and the first line names it.

One Mosquitto, one secondary whose user `edge` has rules of its own, and a tap with user `tap` serve the whole module.
Each test uses a branch of its own, and leaves the rules as they were.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.output.exit_codes import ExitCode
from tests.support.clients import subscriber
from tests.support.mosquitto import Mosquitto, find_mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, link, selector
from tests.support.raw_reader import RawReader
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto

EVERYTHING = "topic readwrite #\ntopic read $SYS/#\n"
UNREPAIRED = "sample_topics = 0\naudit_interval_s = 0\n"
"""Settings of a link that finds no difference by itself before the test has seen it."""
ACCESS = """
[access]
anonymous = "always"

[[access.rule]]
deny = "read"
filter = "site/secret/#"

[[access.rule]]
allow = "all"
filter = "#"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The servers of this module."""

    mosquitto: Mosquitto
    secondary: LiveNode
    tap: LiveNode
    rules: Path

    def set_rules(self, text: str) -> None:
        """Give user `edge` these rules at the primary, in front of the right to everything."""
        self.rules.write_text(f"{EVERYTHING}user tap\n{EVERYTHING}user edge\n{text}{EVERYTHING}")
        assert self.mosquitto.process is not None
        self.mosquitto.process.send_signal(signal.SIGHUP)

    @contextmanager
    def blind(self, topic_filter: str, *, probe: str) -> Iterator[None]:
        """Hide topics from user `edge` at the primary; `probe` is one of them, which has a value."""
        self.set_rules(f"topic deny {topic_filter}\n")
        wait_until_blocking(lambda: not self._edge_reads(probe), what="the new rules")
        yield
        self.set_rules("")
        wait_until_blocking(lambda: self._edge_reads(probe), what="the old rules")

    def publish(self, *messages: tuple[str, bytes]) -> None:
        """Publish retained messages at the primary."""
        with publisher(self.mosquitto.port) as client:
            publish_all(client, messages)

    def _edge_reads(self, topic: str) -> bool:
        with RawReader(self.mosquitto.port, username="edge") as reader:
            reader.subscribe(topic)
        return topic in reader.values


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return the servers, with ten values in the branch `plant/old`."""
    if find_mosquitto() is None:
        pytest.skip("Mosquitto is not installed; scripts/test installs it")
    directory = tmp_path_factory.mktemp("explain")
    rules = directory / "rules"
    rules.write_text(f"{EVERYTHING}user tap\n{EVERYTHING}user edge\n{EVERYTHING}")
    nodes = Nodes(directory)
    with Mosquitto(directory, settings=[f"acl_file {rules}"]) as mosquitto:
        selectors = [
            selector("plant/#", exclude=["plant/debug/#"], prefix="site/"),
            selector("office/#") + 'content = ["json"]\n',
            selector("secret/#", prefix="site/"),
        ]
        edge = link(mosquitto.port, *selectors, settings=f'{QUICK}{UNREPAIRED}username = "edge"\n')
        watcher = link(mosquitto.port, selector("plant/#"), settings=QUICK + 'username = "tap"\n')
        secondary, tap = nodes.secondary(edge + ACCESS), nodes.tap(watcher)
        place = Place(mosquitto, secondary, tap, rules)
        place.publish(*((f"plant/old/{number}", b"old") for number in range(10)))
        try:
            secondary.start()
            tap.start()
            secondary.wait_until_ready()
            tap.wait_until_ready()
            yield place
        finally:
            nodes.end()


def explained(node: LiveNode, topic: str, *further: str) -> tuple[int, list[str]]:
    """Run `fanout explain` and return its exit code and its lines."""
    answer = CliRunner().invoke(app, ["explain", topic, "--url", node.url, *further])
    assert not answer.stderr
    return answer.exit_code, answer.stdout.splitlines()


def test_equal_value_is_equal(place: Place) -> None:
    """Exit code 0; the facts beside it name the value, the link, the user's names of the topic and the log."""
    code, lines = explained(place.secondary, "site/plant/old/1", "--tap", place.tap.url)
    assert code == ExitCode.OK
    assert lines[0].startswith('The value of "site/plant/old/1" here equals that of the primary; it came 20')
    named = {line.split()[0]: line for line in lines[2:] if not line.startswith(" ")}
    digest = named["primary"].split()[-1]
    assert all(f"3 bytes, digest {digest}" in named[name] for name in ("here", "primary", "tap"))
    assert named["topic"] == "topic    site/plant/old/1, at the primary plant/old/1"
    assert "selector plant/#, live since" in named["link"]
    assert "new (snapshot), 3 bytes" in named["log"]
    assert "state live" in "\n".join(lines)
    assert "old" not in " ".join(lines).replace("plant/old", "")  # the payload


def test_value_that_changed_behind_the_back_of_the_link(place: Place) -> None:
    """Another value, one that is gone, and one that is older than what came; a tap tells since when."""
    topics = ("changed", "gone", "restored")
    place.publish(*((f"plant/moved/{topic}", b"one") for topic in topics), ("plant/moved/restored", b"two"))
    wait_until_blocking(
        lambda: any(" replaced (live)" in line for line in explained(place.secondary, "site/plant/moved/restored")[1]),
        what="the second value being in the log",
    )
    with place.blind("plant/moved/#", probe="plant/moved/changed"):
        place.publish(("plant/moved/changed", b"two"), ("plant/moved/gone", b""), ("plant/moved/restored", b"one"))
    code, lines = explained(place.secondary, "site/plant/moved/changed")
    assert code == ExitCode.NO
    begin = 'The primary has another value of "site/plant/moved/changed" than this node'
    assert lines[0].startswith(f"{begin}; it changed after 20")
    assert lines[1] == "  Run fanout audit primary, which repairs it."
    _, lines = explained(place.secondary, "site/plant/moved/changed", "--tap", place.tap.url)
    assert lines[0].startswith(f"{begin}, since about 20")
    assert lines[0].endswith("when it came to tap.")

    code, lines = explained(place.secondary, "site/plant/moved/gone")
    assert code == ExitCode.NO
    assert lines[0].startswith('The primary sends user edge no value of "plant/moved/gone": ')

    code, lines = explained(place.secondary, "site/plant/moved/restored")
    assert code == ExitCode.NO
    assert lines[0].startswith('The primary has an older value of "site/plant/moved/restored": the one that came here')


def test_topic_that_the_user_may_not_read_any_more(place: Place) -> None:
    """Mosquitto grants the subscription and sends nothing: the topics beside it tell, and a tap's user proves it."""
    with place.blind("plant/old/#", probe="plant/old/1"):
        code, lines = explained(place.secondary, "site/plant/old/1")
        assert code == ExitCode.NO
        assert lines[0].startswith(
            'The primary sends user edge neither "plant/old/1" nor any of 8 topics beside it: user edge probably may'
        )
        _, lines = explained(place.secondary, "site/plant/old/1", "--tap", place.tap.url)
        assert lines[0] == (
            'User edge may not read "plant/old/1" at the primary: it sends the value to user tap of tap, and not to'
            " user edge."
        )


def test_topic_outside_the_selectors_and_content_that_is_not_taken(place: Place) -> None:
    """The nearest selector, the exclude, and the key that keeps the value out are named."""
    code, lines = explained(place.secondary, "plant/old/1")
    assert code == ExitCode.NO
    assert lines[0].startswith('"plant/old/1" is outside the selectors, so no link replicates it; the nearest is ')
    _, lines = explained(place.secondary, "site/plant/debug/1")
    assert lines[0] == (
        '"site/plant/debug/1" is outside the selectors: selector "site/plant/#" of link primary excludes it by'
        ' "plant/debug/#".'
    )
    place.publish(("office/door", b"\xff\xfe"))
    code, lines = explained(place.secondary, "office/door")
    assert code == ExitCode.NO
    assert lines[0] == (
        'Selector "office/#" of link primary does not take the value that the primary has for "office/door": its'
        " kind is not in content."
    )


def test_client_that_does_not_get_it(place: Place) -> None:
    """Without a session, without a subscription, denied by a rule; and one that gets it."""
    place.publish(("secret/1", b"x"))
    with subscriber(place.secondary.port, "site/plant/old/2", client_id="panel"):
        for topic, client, text in (
            ("site/plant/old/1", "nobody", 'Client "nobody" has no session at this node.'),
            (
                "site/plant/old/1",
                "panel",
                'Client "panel" has no subscription to "site/plant/old/1": of its subscriptions (1) none matches.',
            ),
            ("site/secret/1", "panel", 'Client "panel" may not read "site/secret/1": access.rule[0] denies it.'),
        ):
            code, lines = explained(place.secondary, topic, "--client", client)
            assert (code, lines[0]) == (ExitCode.NO, text)
        code, lines = explained(place.secondary, "site/plant/old/2", "--client", "panel")
        assert code == ExitCode.OK
        assert lines[0].endswith(', and client "panel" gets it.')


def test_link_that_is_down(place: Place) -> None:
    """The last test of the module, since the primary is gone: the link is the cause, with the time."""
    place.mosquitto.stop()
    wait_until_blocking(lambda: place.secondary.link_state() in ("down", "connecting"), what="the link being down")
    code, lines = explained(place.secondary, "site/plant/old/1")
    assert code == ExitCode.NO
    assert ", and its values were last known to be current 20" in lines[0]
    assert lines[0].endswith('so the value of "site/plant/old/1" here may be old.')
