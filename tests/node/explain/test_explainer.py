"""The facts about one topic: the node's parts, a primary that answers as the test says, and values that change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

import pytest

from fanout.api.topic_facts import TopicExplanation
from fanout.config import Address, HttpConfig, IdentityConfig, LinkConfig, NodeConfig
from fanout.errors import FanoutError, LinkLost, PrimaryRefused
from fanout.link.exact_names import NamedAnswer
from fanout.link.link import Link
from fanout.link.model.audit_report import AuditReport
from fanout.link.model.states import LinkState
from fanout.link.model.status import LinkStatus
from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.node.explain.explainer import TopicExplainer
from fanout.replica.store import Replica
from fanout.replica.update import Phase, Update, content_digest
from fanout.selection import Selector
from fanout.server.client.client_list import ClientFigures, ClientPage, ClientQuery
from fanout.server.client.server import Server
from tests.node.test_documents import LIVE, NOW_NS
from tests.node.test_missing_topics import StillClock

PANEL = ClientFigures(
    client_id="panel",
    address="10.0.0.2:5000",
    connected_s=5.0,
    user="",
    version=5,
    queued_messages=0,
    queued_bytes=0,
    conflated_topics=0,
    in_flight_messages=0,
    unsent_bytes=0,
    slow_s=None,
    acked_bytes=None,
    subscriptions=1,
    filters=("#",),
    matching=("#",),
)


class AnsweringLink:
    """A link whose primary has values, and is asked by name."""

    def __init__(self, *selectors: Selector, values: dict[str, bytes] | None = None) -> None:
        self.config = LinkConfig(
            name="plant",
            primaries=(Address("mqtt", "10.0.0.1", 1883),),
            selectors=selectors or (Selector("plant/#"),),
            username="edge",
        )
        self.values = values or {}
        self.refused: dict[str, int] = {}
        self.error: FanoutError | None = None
        self.state = LIVE
        self.asked: list[list[str]] = []
        self.when_asked: Callable[[int], None] = lambda _: None

    def status(self) -> LinkStatus:
        return self.state

    async def ask_by_name(self, topics: Sequence[str], *, deadline_s: float | None = None) -> NamedAnswer:
        assert deadline_s is not None
        self.asked.append(list(topics))
        self.when_asked(len(self.asked))
        if self.error is not None:
            raise self.error
        rows: dict[str, PublishRow] = {
            topic: (topic.encode(), self.values[topic], 1, 0, b"", None, -1) for topic in topics if topic in self.values
        }
        refused = {topic: code for topic, code in self.refused.items() if topic in topics}
        absent = frozenset(topics) - rows.keys() - refused.keys()
        return NamedAnswer(MappingProxyType(rows), absent, MappingProxyType(refused))


class OneClient:
    """A server with one client."""

    async def clients(self, query: ClientQuery) -> ClientPage:
        assert query.topic == b"plant/1"
        return ClientPage(clients=(PANEL,) if query.client_ids == ("panel",) else ())


class Place:
    """One node with one link."""

    def __init__(self, link: AnsweringLink, *, server: OneClient | None = None, topics_max: int | None = None) -> None:
        self.link = link
        self.replica = Replica(selectors=link.config.selectors, topics_max=topics_max)
        self.own = Replica()
        self.pauses: list[float] = []
        self.when_pausing: Callable[[], None] = lambda: None
        self.explainer = TopicExplainer(
            NodeConfig(node=IdentityConfig(id="edge-1"), http=HttpConfig(), links=(link.config,)),
            links=[(cast(Link, link), self.replica)],
            own=self.own,
            server=cast(Server | None, server),
            clock=StillClock(),
            sleep=self._sleep,
        )

    def hold(self, topic: bytes, payload: bytes, *, prefix: bytes = b"") -> None:
        """Apply a value as it comes from the primary."""
        digest = content_digest(topic, payload)
        update: Update = (prefix + topic, payload, 1, True, b"", NOW_NS, 0, digest, None)
        self.replica.apply([update], phase=Phase.LIVE)

    async def explain(self, topic: str, *, at_primary: bool = False, client_id: str | None = None) -> TopicExplanation:
        """Return the explanation of a topic."""
        return await self.explainer.explain(topic, at_primary=at_primary, client_id=client_id)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.when_pausing()


async def test_equal_value_with_its_names_on_both_sides() -> None:
    """The prefix is taken off for the primary; a tap is asked by the name there."""
    place = Place(AnsweringLink(Selector("plant/#", prefix="site/"), values={"plant/1": b"x"}))
    place.hold(b"plant/1", b"x", prefix=b"site/")
    found = await place.explain("site/plant/1")
    assert found.verdict.kind == "equal"
    link, value = found.facts.link, found.facts.value
    assert link is not None
    assert value is not None
    assert (link.topic, link.selector, link.username, link.state) == ("plant/1", "plant/#", "edge", "live")
    assert (value.payload_bytes, value.digest) == (1, f"{content_digest(b'plant/1', b'x'):016x}")
    assert place.pauses == []
    assert (await place.explain("plant/1", at_primary=True)).facts.link == link
    assert (await place.explain("plant/1")).verdict.kind == "outside"


async def test_topics_beside_it_are_requested_in_the_same_request() -> None:
    """Of its own branch first, then around it; never one of another selector or itself, and eight at most."""
    place = Place(AnsweringLink(Selector("plant/+/t"), Selector("office/#")))
    for number in range(20):
        place.hold(b"plant/%d/t" % number, b"x")
    place.hold(b"office/1", b"x")
    found = await place.explain("plant/3/t")
    assert found.verdict.kind == "not_readable"
    ((topic, *beside),) = place.link.asked[:1]
    assert topic == "plant/3/t"
    assert len(set(beside)) == 8
    assert all(one.startswith("plant/") and one != topic for one in beside)
    await place.explain("office/1")
    assert place.link.asked[-1] == ["office/1"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PrimaryRefused("no", reason_code=ReasonCode.BAD_USER_NAME_OR_PASSWORD, hint="Check both"), "denied"),
        (PrimaryRefused("no", reason_code=ReasonCode.NOT_AUTHORIZED), "denied"),
        (PrimaryRefused("busy", reason_code=ReasonCode.SERVER_BUSY), "unanswered"),
        (LinkLost("gone"), "unanswered"),
    ],
)
async def test_a_primary_that_does_not_answer(error: FanoutError, outcome: str) -> None:
    """A refused user is another cause than a primary that is away; neither is waited for again."""
    place = Place(AnsweringLink())
    place.hold(b"plant/1", b"x")
    place.link.error = error
    found = await place.explain("plant/1")
    assert found.facts.primary is not None
    assert (found.facts.primary.outcome, found.facts.primary.error) == (outcome, error.message)
    assert (len(place.link.asked), place.pauses) == (1, [])


async def test_a_refused_subscription_names_the_reason_code() -> None:
    """Of topics beside it too, which count as absent."""
    place = Place(AnsweringLink())
    place.hold(b"plant/1", b"x")
    place.hold(b"plant/2", b"x")
    place.link.refused = {"plant/1": 0x87, "plant/2": 0x87}
    found = await place.explain("plant/1")
    assert found.facts.primary is not None
    assert (found.facts.primary.outcome, found.facts.primary.beside_absent) == ("refused", 1)
    assert "Not authorized (0x87)" in found.verdict.text


async def test_an_update_under_way_is_no_difference() -> None:
    """It arrives while the primary is asked, or shortly after its answer."""
    place = Place(AnsweringLink(values={"plant/1": b"new"}))
    place.hold(b"plant/1", b"old")
    place.when_pausing = lambda: place.hold(b"plant/1", b"new")
    assert (await place.explain("plant/1")).verdict.kind == "equal"
    assert len(place.pauses) == 1

    place = Place(AnsweringLink(values={"plant/1": b"new"}))
    place.hold(b"plant/1", b"old")
    place.link.when_asked = lambda _: place.hold(b"plant/1", b"new")
    assert (await place.explain("plant/1")).verdict.kind == "equal"
    assert place.pauses == []


async def test_the_answer_may_be_older_than_the_value_here() -> None:
    """The value here changed after the primary had answered; it was equal before."""
    place = Place(AnsweringLink(values={"plant/1": b"old"}))
    place.hold(b"plant/1", b"old")
    place.link.when_asked = lambda _: place.hold(b"plant/1", b"newer")
    assert (await place.explain("plant/1")).verdict.kind == "equal"


async def test_a_topic_that_changes_all_the_time_is_not_called_different() -> None:
    """Three requests, and the value here changed during each."""
    place = Place(AnsweringLink(values={"plant/1": b"at primary"}))
    place.hold(b"plant/1", b"0")
    place.link.when_asked = lambda count: place.hold(b"plant/1", b"%d" % count)
    found = await place.explain("plant/1")
    assert (found.verdict.kind, found.facts.changing, len(place.link.asked)) == ("equal", True, 3)


async def test_a_lasting_difference_is_one() -> None:
    """After the time that an update may take, with the newest audit that did not fail."""
    place = Place(AnsweringLink(values={"plant/1": b"new"}))
    place.hold(b"plant/1", b"old")
    for failure in ("", "cut short"):
        report = AuditReport(confirmed=False, failure=failure)
        place.link.state = replace(LIVE, newest_audit=report, audit_ended_ns=NOW_NS + 1)
        found = await place.explain("plant/1")
        assert found.verdict.kind == "differs"
        assert found.facts.link is not None
        assert (found.facts.link.audited is None) == bool(failure)
    assert len(place.pauses) == 2


async def test_a_link_that_is_not_live_tells_since_when_its_values_may_be_old() -> None:
    """`since` is of the newest attempt to connect; the age of the values is what an operator asks for."""
    place = Place(AnsweringLink())
    place.hold(b"plant/1", b"x")
    place.link.error = LinkLost("no answer")
    for stale_s, text in ((60.5, "last known to be current"), (None, "have not been proved")):
        place.link.state = replace(LIVE, state=LinkState.CONNECTING, stale_s=stale_s)
        found = await place.explain("plant/1")
        assert found.verdict.text.startswith("link plant is connecting, and its values")
        assert text in found.verdict.text
        link = found.facts.link
        assert link is not None
        age = None if link.current_until is None else (found.facts.at - link.current_until).total_seconds()
        assert age == stale_s


async def test_a_value_that_content_or_a_limit_keeps_out() -> None:
    """The rules of the selector are applied to the primary's value; a limit is known by topic."""
    choosy = Selector("plant/#", content=("json",), max_payload=4)
    place = Place(AnsweringLink(choosy, values={"plant/1": b"{{{", "plant/2": b'"long"', "plant/3": b"1"}))
    for topic, unfit in (("plant/1", "content"), ("plant/2", "payload_too_large")):
        found = await place.explain(topic)
        assert found.facts.primary is not None
        assert (found.verdict.kind, found.facts.primary.unfit) == ("refused", unfit)
    assert (await place.explain("plant/3")).verdict.kind == "differs"

    place = Place(AnsweringLink(values={"plant/1": b"x", "plant/2": b"y"}), topics_max=1)
    place.hold(b"plant/1", b"x")
    place.hold(b"plant/2", b"y")
    assert "topics_max" in (await place.explain("plant/2")).verdict.text
    assert (await place.explain("plant/1")).verdict.kind == "equal"

    place = Place(AnsweringLink(Selector("plant/#", live_only=True), values={"plant/1": b"x"}))
    assert "live_only" in (await place.explain("plant/1")).verdict.text


async def test_topics_outside_are_not_asked_for() -> None:
    """The link's control topic, an own value of the node, and whatever no selector covers."""
    place = Place(AnsweringLink(Selector("#")))
    own: Update = (b"$mine", b"x", 1, True, b"", NOW_NS, 0, content_digest(b"$mine", b"x"), None)
    place.own.apply([own], phase=Phase.LIVE)
    assert "a client of this node published" in (await place.explain("$mine")).verdict.text
    found = await place.explain("fanout/control/beat")
    assert (found.verdict.kind, place.link.asked) == ("outside", [])


async def test_a_client_is_looked_up_only_when_it_is_named() -> None:
    """Here, elsewhere, and on a node without clients."""
    link = AnsweringLink(values={"plant/1": b"x"})
    for server, client_id, text in (
        (OneClient(), None, "equals that of the primary"),
        (OneClient(), "panel", 'client "panel" gets it'),
        (OneClient(), "other", "has no session at this node"),
        (None, "panel", "this node serves no clients"),
    ):
        place = Place(link, server=server)
        place.hold(b"plant/1", b"x")
        assert text in (await place.explain("plant/1", client_id=client_id)).verdict.text
