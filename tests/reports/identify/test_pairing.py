"""Which log is the reference, and which link is compared with which."""

from __future__ import annotations

import json

import pytest

from fanout.errors import ReportError
from fanout.reports.identify.pairing import ObservedLink, Pairing, choose_reference, names, observed_links
from fanout.reports.identify.planning import decide_scope
from fanout.reports.read.scope import Group, Reference
from fanout.reports.read.survey import Survey
from tests.reports.logs import NodeLog, Row, at, selector
from tests.reports.surveys import survey_of


@pytest.mark.parametrize(
    ("roles", "kind", "nodes"),
    [
        ({"p": "primary", "t": "tap", "s": "secondary"}, "primary", ("p",)),
        ({"t": "tap", "s": "secondary"}, "tap", ("t",)),
        ({"r": "secondary", "s": "secondary"}, "union", ("r", "s")),
    ],
)
def test_reference_is_the_primary_else_the_tap_else_the_union(
    roles: dict[str, str], kind: str, nodes: tuple[str, ...]
) -> None:
    """The strongest kind of log that exists once is taken, and the union has a name of its own."""
    found = choose_reference(roles, requested=None)
    assert (found.kind, found.nodes) == (kind, nodes)
    assert found.name == ("union" if kind == "union" else nodes[0])


@pytest.mark.parametrize("role", ["primary", "tap", "secondary"])
def test_the_reference_asked_for_is_taken(role: str) -> None:
    """Any node may be named, whatever else there is."""
    found = choose_reference({"x": role, "p": "primary", "q": "primary"}, requested="x")
    assert (found.kind, found.nodes, found.chosen) == (role, ("x",), "asked for")


@pytest.mark.parametrize(
    ("roles", "requested", "message"),
    [
        ({}, None, "the logs hold no row"),
        ({"s": "secondary"}, None, "nothing to compare s with"),
        ({"s": "secondary"}, "x", "the reference x is not in the logs. They are of s"),
        ({"q": "primary", "p": "primary"}, None, "2 nodes of role primary: p, q. Name one with --reference"),
        ({"t": "tap", "u": "tap"}, None, "2 nodes of role tap: t, u"),
    ],
)
def test_a_reference_that_cannot_be_chosen_is_an_error(
    roles: dict[str, str], requested: str | None, message: str
) -> None:
    """The error says what is in the logs and what to do."""
    with pytest.raises(ReportError) as caught:
        choose_reference(roles, requested=requested)
    assert message in str(caught.value)


def test_the_only_node_that_stamps_for_others_comes_before_a_tap() -> None:
    """Its log makes the figures exact; several of them are for the operator to choose from, and alone there is none."""
    roles = {"t": "tap", "a": "secondary", "b": "secondary"}
    found = choose_reference(roles, requested=None, first_tier=("a",))
    assert (found.kind, found.nodes) == ("first_tier", ("a",))
    assert found.chosen == "the only node that stamps for others in the logs"
    assert choose_reference(roles, requested="a", first_tier=("a", "b")).kind == "first_tier"
    assert choose_reference(roles, requested="b", first_tier=("a",)).kind == "secondary"
    with pytest.raises(ReportError, match="2 nodes that stamp for nodes below them: a, b"):
        choose_reference(roles, requested=None, first_tier=("a", "b"))
    with pytest.raises(ReportError, match="nothing to compare"):
        choose_reference({"a": "secondary"}, requested=None, first_tier=("a",))


def link(name: str, *addresses: str) -> Row:
    """Return a link as the `start` event describes it."""
    return {"name": name, "primary": list(addresses), "selectors": [selector("#")]}


def node(name: str, *links: Row, role: str = "secondary", stamps: dict[str, str] | None = None) -> NodeLog:
    """Return a node with these links, whose rows may carry somebody's stamps."""
    log = NodeLog(name, role)
    log.start(at(0), *links)
    for described in links:
        log.ready(at(1), described["name"], "#")
        row = log.update(at(2), "t", "x", link=described["name"], selector="#")
        if stamps and described["name"] in stamps:
            row |= {
                "stamp_primary": stamps[described["name"]],
                "stamp_epoch": 1,
                "sequence": 1,
                "origin": row["applied"],
            }
            log.updates[-1] = row
    return log


def pairs(*logs: NodeLog, requested: str | None = None) -> tuple[dict[str, int | None], list[str]]:
    """Return the group of each link that is no source, and the notices."""
    survey = survey_of(*logs)
    reference = choose_reference(survey.roles, requested=requested, first_tier=survey.first_tier)
    links = observed_links(survey)
    pairing = Pairing(survey, reference=reference, links=links)
    found: dict[str, int | None] = {}
    for one in links:
        if reference.kind == "union" or one.node not in reference.nodes:
            group = pairing.pair(one)
            found[one.title] = None if group is None else group.id
    return found, pairing.notices


def groups_of(survey: Survey, *, reference: Reference, links: list[ObservedLink] | None = None) -> list[Group]:
    """Return the groups of a reference."""
    pairing = Pairing(survey, reference=reference, links=observed_links(survey) if links is None else links)
    return pairing.groups


def hub(*sequences: int) -> NodeLog:
    """Return a primary that stamped these."""
    log = NodeLog("hub", "primary")
    log.start(at(0))
    for sequence in sequences:
        log.publish(at(2), sequence, "t", "x")
    return log


def test_links_of_a_primary_are_told_by_stamps_then_by_what_they_connected_to() -> None:
    """What another node stamped, or nobody, came from elsewhere; a link that brought nothing is not left out."""
    silent = NodeLog("silent")
    silent.start(at(0), link("up", "a"))
    named = NodeLog("named")
    named.start(at(0), link("up", "a"), link("down", "b"))
    named.event("state", at(1), link="up", state="snapshot", detail='{"primary_node": "hub"}')
    named.event("state", at(1), link="down", state="snapshot", detail='{"primary_node": "other"}')
    found, notices = pairs(
        hub(1),
        silent,
        named,
        node("ours", link("up", "a"), stamps={"up": "hub"}),
        node("theirs", link("up", "a"), stamps={"up": "other"}),
        node("plain", link("up", "a")),
    )
    assert found == {
        "silent/up": 0,
        "named/up": 0,
        "named/down": None,
        "ours/up": 0,
        "theirs/up": None,
        "plain/up": 1,
    }
    assert notices == [
        "named/down is not compared: its updates do not come from hub.",
        "plain/up brought no stamps, as over MQTT 3.1.1; it has an address of named/up, so it is compared with hub by "
        "value.",
        "theirs/up is not compared: its updates do not come from hub.",
    ]


def plain(name: str, *addresses: str, says: str | None, link_name: str = "up", role: str = "secondary") -> NodeLog:
    """Return a node whose link brought an update without a stamp, and says this of its primary."""
    log = node(name, link(link_name, *addresses), role=role)
    detail = json.dumps({"primary": addresses[0], "primary_node": says})
    log.event("state", at(3), link=link_name, state="live", detail=detail)
    return log


def test_a_link_that_knows_its_primary_is_not_guessed_at() -> None:
    """Over MQTT 3.1.1 too: the name decides, through nodes between as well, and against address, name and number."""
    middle = node("middle", link("up", "a"), stamps={"up": "hub"})
    middle.event("state", at(1), link="up", state="snapshot", detail='{"primary_node": "hub"}')
    silent = NodeLog("silent")
    silent.start(at(0), link("up", "m"))
    silent.event("state", at(1), link="up", state="live", detail='{"primary": "m", "primary_node": "middle"}')
    found, notices = pairs(
        hub(1),
        middle,
        silent,
        plain("named", "z", says="hub"),
        plain("chained", "m", says="middle"),
        plain("elsewhere", "a", says="other"),
        plain("broker", "a", says=""),
        plain("unknown", "a", says=None),
    )
    assert found == {
        "middle/up": 0,
        "silent/up": 0,
        "named/up": 1,
        "chained/up": 1,
        "elsewhere/up": None,
        "broker/up": None,
        "unknown/up": 1,
    }
    assert notices == [
        "broker/up is not compared: its updates do not come from hub.",
        "chained/up brought no stamps, as over MQTT 3.1.1, so it is compared with hub by value.",
        "elsewhere/up is not compared: its updates do not come from hub.",
        "named/up brought no stamps, as over MQTT 3.1.1, so it is compared with hub by value.",
        "unknown/up brought no stamps, as over MQTT 3.1.1; it has an address of middle/up, so it is compared with hub "
        "by value.",
    ]


def test_a_node_whose_log_is_not_there_feeds_all_of_its_links_or_none() -> None:
    """Stamps that one link brought through it show that the other, over MQTT 3.1.1, is fed by the reference too."""
    below = node("below", link("up", "m"), stamps={"up": "hub"})
    below.event("state", at(1), link="up", state="live", detail='{"primary": "m", "primary_node": "middle"}')
    assert pairs(hub(1), below, plain("old", "n", says="middle", link_name="x"))[0] == {"below/up": 0, "old/x": 1}


def test_links_of_a_tap_are_found_by_the_node_that_both_were_connected_to() -> None:
    """It is surer than an address or a name that happens to be the same."""
    tap = node("tap", link("up", "a"), link("b", "b"), role="tap")
    tap.event("state", at(1), link="up", state="live", detail='{"primary": "a", "primary_node": "one"}')
    tap.event("state", at(1), link="b", state="live", detail='{"primary": "b", "primary_node": "two"}')
    assert pairs(tap, plain("edge", "a", says="two")) == ({"edge/up": 1}, [])
    found, _ = pairs(plain("one", "a", says="hub", link_name="x"), plain("two", "b", says="hub", link_name="y"))
    assert found == {"one/x": 0, "two/y": 0}


def test_links_without_stamps_share_a_group_by_value_beside_the_stamped_one() -> None:
    """Address and name of a link that is fed by the primary are grounds, and to be the only link there is."""
    ours = node("ours", link("up", "a"), stamps={"up": "hub"})
    logs = (hub(1), ours, node("x", link("y", "a")), node("y", link("up", "b")), node("z", link("z", "c")))
    found, notices = pairs(*logs)
    assert found == {"ours/up": 0, "x/y": 1, "y/up": 1, "z/z": None}
    assert "it has an address of ours/up" in notices[0]
    assert "it has the name of ours/up" in notices[1]
    assert (
        notices[2] == "z/z is not compared: its updates carry no stamp, and nothing tells whether they come from hub."
    )
    scope = decide_scope(survey_of(*logs), requested=None, settle_us=0)
    assert [(group.id, group.basis, group.exact) for group in scope.groups] == [
        (0, "stamped", True),
        (1, "unstamped", False),
    ]
    assert [group for _, _, group in scope.sources] == [0, 1]
    assert (scope.left_out, scope.stamped_once) == (("z/z",), True)
    found, notices = pairs(hub(1), node("edge", link("up", "a")))
    assert found == {"edge/up": 1}
    assert "it is the only link of its node" in notices[0]
    assert pairs(hub(1), node("edge", link("a", "a"), link("b", "b")))[0] == {"edge/a": None, "edge/b": None}


def test_a_primary_that_does_not_stamp_is_compared_without_stamps() -> None:
    """The basis follows what is in the reference's log; no log at all yet counts as stamped."""
    plain = NodeLog("hub", "primary")
    plain.update(at(2), "t", "x")
    (group,) = groups_of(survey_of(plain), reference=Reference("primary", ("hub",), ""), links=[])
    assert (group.basis, group.exact, group.sources) == ("unstamped", False, (("hub", ""),))
    assert pairs(plain, node("edge", link("up", "a")))[0] == {"edge/up": 0}
    groups = groups_of(survey_of(hub()), reference=Reference("primary", ("hub",), ""), links=[])
    assert (groups[0].basis, groups[0].exact, groups[0].stamped_by) == ("stamped", True, ("hub",))


def test_holes_and_gaps_make_a_primary_inexact() -> None:
    """A reference that lacks rows is not called exact."""
    holed = hub(1, 2, 3)
    del holed.updates[1]
    groups = groups_of(survey_of(holed), reference=Reference("primary", ("hub",), ""), links=[])
    assert not groups[0].exact
    gap = hub(1)
    gap.gap(at(3), rows=0)
    groups = groups_of(survey_of(gap), reference=Reference("primary", ("hub",), ""), links=[])
    assert (groups[0].exact, groups[0].gap) == (False, True)


def test_links_of_a_tap_are_found_by_stamp_address_name_or_being_the_only_ones() -> None:
    """Each weaker ground is used only without a stronger one, and is said when it is weak."""
    tap = node("tap", link("a", "mqtt://a"), link("b", "mqtt://b"), role="tap", stamps={"b": "hub"})
    found, notices = pairs(
        tap,
        node("stamps", link("a", "mqtt://a"), stamps={"a": "hub"}),
        node("address", link("x", "mqtt://z", "mqtt://b")),
        node("name", link("a", "mqtt://elsewhere")),
        node("none", link("x", "mqtt://elsewhere")),
    )
    assert found == {"stamps/a": 0, "address/x": 2, "name/a": 0, "none/x": None} | {"stamps/a": found["stamps/a"]}
    assert notices == [
        "address/x brought no stamps, as over MQTT 3.1.1, so it is compared with tap/b by value.",
        "name/a and tap/a name different addresses; as they have the same name they are taken to lead to the same "
        "primary.",
        "none/x is not compared: no link of tap leads to the same primary.",
    ]
    found, notices = pairs(node("tap", link("a", "mqtt://a"), role="tap"), node("edge", link("x", "mqtt://z")))
    assert found == {"edge/x": 0}
    assert "as they are the only links of their nodes they are taken" in notices[0]


def test_a_link_without_stamps_is_compared_by_value_with_one_that_has_them() -> None:
    """Over MQTT 3.1.1 no stamp comes: by identity all would be missing. One that brought nothing may lack all."""
    tap = node("tap", link("up", "a"), role="tap", stamps={"up": "hub"})
    silent = NodeLog("silent")
    silent.start(at(0), link("up", "a"))
    logs = (tap, node("ours", link("up", "a"), stamps={"up": "hub"}), node("plain", link("up", "a")), silent)
    found, notices = pairs(*logs, node("second", link("up", "a")))
    assert found == {"ours/up": 0, "plain/up": 1, "second/up": 1, "silent/up": 0}
    assert notices == [
        f"{name}/up brought no stamps, as over MQTT 3.1.1, so it is compared with tap/up by value."
        for name in ("plain", "second")
    ]
    scope = decide_scope(survey_of(*logs), requested=None, settle_us=0)
    assert [(group.basis, group.stamped_by) for group in scope.groups] == [("stamped", ("hub",)), ("unstamped", ())]
    assert scope.sources == [("tap", "up", 0), ("tap", "up", 1)]
    by_value = {target.node: target for target in scope.targets}["plain"]
    assert (by_value.group, by_value.covered_from_us) == (1, at(1)), "from when both held everything, by their clocks"


def test_a_link_without_stamps_is_compared_by_value_in_a_union() -> None:
    """Each link is in the union that it is compared with, by whichever basis."""
    one, two = (node(name, link("up", "a"), stamps={"up": "hub"}) for name in ("one", "two"))
    found, notices = pairs(one, two, node("plain", link("up", "a")))
    assert found == {"one/up": 0, "two/up": 0, "plain/up": 1}
    whom = "the other secondaries"
    assert notices == [f"plain/up brought no stamps, as over MQTT 3.1.1, so it is compared with {whom} by value."]


def test_stamps_decide_against_address_and_name() -> None:
    """Links whose rows were stamped by different nodes do not lead to the same primary, whatever they are called."""
    tap = node("tap", link("up", "mqtt://a"), role="tap", stamps={"up": "one"})
    found, notices = pairs(tap, node("edge", link("up", "mqtt://a"), stamps={"up": "two"}))
    assert found == {"edge/up": None}
    assert "is not compared" in notices[0]
    two = node("tap", link("a", "mqtt://x"), link("b", "mqtt://x"), role="tap", stamps={"a": "one", "b": "two"})
    found, _ = pairs(two, node("edge", link("c", "mqtt://y"), stamps={"c": "two"}))
    assert found == {"edge/c": 1}


def test_a_union_groups_links_that_lead_to_the_same_primary() -> None:
    """A link that fits two groups joins them; the group's basis is that of its rows."""
    one = node("one", link("a", "mqtt://a"))
    two = node("two", link("b", "mqtt://b"))
    found, _ = pairs(one, two)
    assert found == {"one/a": 0, "two/b": 1}
    both = node("zed", link("c", "mqtt://a", "mqtt://b"))
    found, _ = pairs(one, two, both)
    assert found == {"one/a": 0, "two/b": 0, "zed/c": 0}
    survey = survey_of(
        node("one", link("a", "x"), stamps={"a": "hub"}), node("two", link("a", "x"), stamps={"a": "hub"})
    )
    groups = groups_of(survey, reference=choose_reference(survey.roles, requested=None))
    assert [(g.basis, g.exact, g.selections, g.end_us) for g in groups] == [("stamped", False, None, at(2))]


def test_names_are_in_order() -> None:
    """A sentence lists names alphabetically."""
    assert names({"b", "a", "c"}) == "a, b, c"


def test_a_first_tier_node_is_the_primary_of_the_nodes_below_it() -> None:
    """All that it hands on is one group, exact while nobody else stamped; a second first-tier node is not compared."""
    first = node("first", link("up", "a"), link("other", "b"), stamps={"up": "first", "other": "first"})
    below = node("below", link("up", "c"), stamps={"up": "first"})
    beside = node("beside", link("up", "a"), stamps={"up": "beside"})
    survey = survey_of(first, below, beside)
    assert survey.first_tier == ("beside", "first")
    found, notices = pairs(first, below, beside, requested="first")
    assert found == {"below/up": 0, "beside/up": None}
    assert notices == ["beside/up is not compared: its updates do not come from first."]
    reference = choose_reference(survey.roles, requested="first", first_tier=survey.first_tier)
    (group,) = groups_of(survey, reference=reference)
    assert set(group.sources) == {("first", "other"), ("first", "up"), ("first", "")}
    assert (group.basis, group.exact, group.stamped_by, group.selections) == ("stamped", True, ("first",), None)
    mixed = survey_of(node("first", link("up", "a"), link("b", "b"), stamps={"up": "first", "b": "machine-7"}), below)
    (group,) = groups_of(mixed, reference=reference)
    assert (group.exact, group.stamped_by) == (False, ("first", "machine-7"))


def test_a_link_beside_a_first_tier_node_is_not_taken_to_be_below_it() -> None:
    """It has an address of the first tier's own link; a link that brought no stamps from below is compared by value."""
    first = node("first", link("up", "broker"), stamps={"up": "first"})
    found, notices = pairs(first, node("beside", link("up", "broker")), node("below", link("up", "first:1883")))
    assert found == {"beside/up": None, "below/up": 1}
    assert "nothing tells whether they come from first" in notices[1]
