"""Tests of `fanout.access.rules`: what a list of rules means, and that subscriptions are granted soundly."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.access.identity import Identity
from fanout.access.rules import Denied, Direction, Rule, RuleSet
from fanout.errors import AccessRuleInvalid, ProtocolError
from tests.access.pieces import TOPICS, filters, obviously_matched, obviously_matches
from tests.test_imports import NOT_IN_CORE, imported

PACKAGE = Path(__file__).parents[2] / "fanout" / "access"
ALICE = Identity(client_id="s1", user="alice")


def allow(topic_filter: str, direction: Direction = "all", user: str = "*", client_id: str = "*") -> Rule:
    """Return a rule that allows."""
    return Rule(allows=True, direction=direction, filter=topic_filter, user=user, client_id=client_id)


def deny(topic_filter: str, direction: Direction = "all", user: str = "*", client_id: str = "*") -> Rule:
    """Return a rule that denies."""
    return Rule(allows=False, direction=direction, filter=topic_filter, user=user, client_id=client_id)


def may_read(rules: list[Rule], topic_filter: str, identity: Identity = ALICE) -> bool:
    """Ask for a subscription."""
    return RuleSet(rules).rights(identity).may_subscribe(topic_filter.encode())


def may_write(rules: list[Rule], topic: str, identity: Identity = ALICE) -> bool:
    """Ask for a PUBLISH."""
    return RuleSet(rules).rights(identity).may_publish(topic.encode())


# The oracle: rules read one after the other, for one topic.

BAD_NAMES = ("+", "#", "a/b", "a\0")
NAMES = ("", "a", "b", "$d", *BAD_NAMES)


def obviously_decides(rule: Rule, identity: Identity, topic: str) -> bool:
    """Say whether a rule decides on a topic for a client."""
    names = {"%u": identity.user, "%c": identity.client_id}
    levels = rule.filter.split("/")
    used = [names[level] for level in levels if level in names]
    if "" in used:
        return False
    at_the_beginning = names.get(levels[0], "")
    if any(name in BAD_NAMES for name in used) or at_the_beginning.startswith("$"):
        return not rule.allows
    return obviously_matches("/".join(names.get(level, level) for level in levels), topic)


def obviously_allowed(rules: list[Rule], identity: Identity, topic: str, direction: Direction) -> bool:
    """Return the decision of the first rule that fits; no when none does."""
    if not rules:
        return True
    for rule in rules:
        fits = rule.direction in (direction, "all") and rule.user in ("*", identity.user)
        if fits and rule.client_id in ("*", identity.client_id) and obviously_decides(rule, identity, topic):
            return rule.allows
    return False


def rule_lists(levels: tuple[str, ...], size_max: int) -> st.SearchStrategy[list[Rule]]:
    """Make lists of rules over such levels."""
    return st.lists(
        st.builds(
            Rule,
            allows=st.booleans(),
            direction=st.sampled_from(["read", "write", "all", "all"]),
            filter=filters(levels),
            user=st.sampled_from(["*", "*", "*", "a", ""]),
            client_id=st.sampled_from(["*", "*", "*", "a"]),
        ),
        max_size=size_max,
    )


IDENTITIES = st.builds(Identity, user=st.sampled_from(NAMES), client_id=st.sampled_from(NAMES))
RULES = rule_lists(("", "a", "b", "$d"), 6)
TEMPLATES = rule_lists(("", "a", "$d", "%u", "%c"), 5)


class TestAgainstEnumeration:
    """Every topic up to a depth, tried one by one, gives the same answer."""

    @given(RULES | TEMPLATES, IDENTITIES, filters())
    @settings(deadline=None, max_examples=500)
    def test_a_subscription_is_granted_exactly_when_all_its_topics_may_be_read(
        self, rules: list[Rule], identity: Identity, topic_filter: str
    ) -> None:
        """Sound: no topic that a granted filter matches is denied. Exact: what could be granted is."""
        matched = obviously_matched(topic_filter)
        denied = [topic for topic in matched if not obviously_allowed(rules, identity, topic, "read")]
        rights = RuleSet(rules).rights(identity)
        assert rights.may_subscribe(topic_filter.encode()) is not bool(denied)
        why = rights.explain(topic_filter.encode())
        assert (why is not None) is bool(denied)
        if why is not None:
            assert obviously_matches(topic_filter, why.topic)
            assert not obviously_allowed(rules, identity, why.topic, "read")
            assert why.rule is None or not rules[why.rule].allows

    @given(RULES | TEMPLATES, IDENTITIES)
    @settings(deadline=None, max_examples=50)
    def test_a_publish_is_decided_by_the_first_rule_that_fits(self, rules: list[Rule], identity: Identity) -> None:
        """For every topic, also when the decision is remembered."""
        rights = RuleSet(rules, decisions_max=100).rights(identity)
        for topic in TOPICS[::7] * 2:
            assert rights.may_publish(topic.encode()) is obviously_allowed(rules, identity, topic, "write"), topic

    @given(RULES, IDENTITIES, st.sampled_from(TOPICS))
    @settings(deadline=None)
    def test_a_topic_may_be_read_when_a_subscription_to_it_is_granted(
        self, rules: list[Rule], identity: Identity, topic: str
    ) -> None:
        """A filter without wildcards is the one topic."""
        granted = RuleSet(rules).rights(identity).may_subscribe(topic.encode())
        assert granted is obviously_allowed(rules, identity, topic, "read")


def test_without_rules_everything_is_allowed() -> None:
    """Nobody is locked out by what nobody wrote."""
    rights = RuleSet().rights(ALICE)
    assert rights.unlimited
    assert rights.may_publish(b"a")
    assert rights.may_subscribe(b"#")
    assert rights.may_subscribe(b"$SYS/#")


def test_with_one_rule_the_rest_is_denied() -> None:
    """Also for users, directions and topics that the rule does not name."""
    rules = [allow("plant/#", "read", "alice")]
    assert may_read(rules, "plant/+/x")
    assert not may_read(rules, "other")
    assert not may_write(rules, "plant/x")
    assert not may_read(rules, "plant/x", Identity(client_id="s1", user="bob"))
    assert not RuleSet(rules).rights(ALICE).unlimited


def test_the_first_rule_that_fits_decides() -> None:
    """An exception stands before what it is an exception from."""
    rules = [allow("plant/public/#", "read"), deny("plant/#"), allow("#")]
    assert may_read(rules, "plant/public/+")
    assert not may_read(rules, "plant/a")
    assert may_read(rules, "other/#")
    assert not may_read(rules, "#")
    assert not may_write(rules, "plant/public/a")


def test_a_refusal_has_a_witness() -> None:
    """The operator sees a topic, and the rule that denies it, if one does."""
    rules = [deny("plant/+/secret"), allow("plant/#")]
    rights = RuleSet(rules).rights(ALICE)
    assert rights.explain(b"plant/#") == Denied("plant/x/secret", 0)
    assert rights.explain(b"#") == Denied("x", None)
    assert rights.explain(b"plant/+") is None


def test_several_rules_together_grant_a_subscription() -> None:
    """No single rule has to cover the filter."""
    assert may_read([allow("a"), allow("a/+"), allow("a/+/#")], "a/#")
    assert not may_read([allow("a"), allow("a/+/#")], "#")


def test_a_filter_whose_shortest_topic_would_be_empty_is_decided_by_the_others() -> None:
    """The filter "/#" matches "/x", and not the empty text, which is no Topic Name."""
    assert not may_read([allow("a", user="bob")], "/#")
    assert not may_read([allow("a")], "/#")
    assert may_read([allow("/#")], "/#")
    assert may_read([allow("/+/#")], "/#")


def test_a_deny_that_leaves_nothing_denied_does_not_matter() -> None:
    """What an earlier rule allows, a later one does not take away."""
    assert may_read([allow("a/+"), deny("a/b"), allow("a/#")], "a/#")


def test_the_topics_of_the_server_need_their_own_rule() -> None:
    """A leading wildcard does not match `$SYS` [MQTT-4.7.2-1], in rules as in subscriptions."""
    assert not may_read([allow("#")], "$SYS/broker/uptime")
    assert may_read([allow("#")], "#")
    assert may_read([allow("$SYS/#", "read")], "$SYS/broker/+")


def test_a_shared_subscription_needs_what_its_filter_needs() -> None:
    """The group plays no part; what only looks like one is the client's fault."""
    assert may_read([allow("plant/#")], "$share/group/plant/a")
    assert not may_read([allow("other/#")], "$share/group/plant/a")
    with pytest.raises(ProtocolError):
        may_read([allow("plant/#")], "$share/group")


def test_a_rule_without_a_user_is_for_clients_without_one() -> None:
    """`user = ""` is nobody in particular, `"*"` is everybody."""
    nobody = Identity(client_id="s1")
    assert may_read([allow("a", user="")], "a", nobody)
    assert not may_read([allow("a", user="")], "a")
    assert may_read([allow("a")], "a", nobody)


def test_a_rule_for_client_identifiers() -> None:
    """A star stands for any characters."""
    rules = [allow("a", client_id="sensor-*")]
    assert may_write(rules, "a", Identity(client_id="sensor-7"))
    assert not may_write(rules, "a", Identity(client_id="reader-7"))


@pytest.mark.parametrize("name", ["+", "#", "a/#", "x/y", "\0"])
def test_a_hostile_name_gains_nothing(name: str) -> None:
    """It opens no topic that a rule allows, and escapes no rule that denies."""
    hostile = Identity(client_id=name, user=name)
    assert not may_read([allow("home/%u/#")], "home/#", hostile)
    assert not may_read([allow("home/%c/x")], "home/x/x", hostile)
    assert not may_read([allow("%c/#")], "#", hostile)
    assert not may_write([deny("banned/%c/#"), allow("#")], "banned/x/y", hostile)
    assert not may_write([deny("banned/%c/#"), allow("#")], "other", hostile)


def test_a_rule_about_a_name_does_not_concern_who_has_none() -> None:
    """Neither does it allow nor deny."""
    nobody = Identity(client_id="s1")
    assert may_write([deny("home/%u"), allow("#")], "home/x", nobody)
    assert not may_write([allow("home/%u")], "home/", nobody)


def test_an_illegal_filter_is_refused_when_the_rule_is_made() -> None:
    """Not when a client comes."""
    with pytest.raises(AccessRuleInvalid):
        allow("a/#/b")


def test_remembered_decisions_are_bounded_for_all_clients_together() -> None:
    """When there is no room, all are forgotten, and the next ones are as right."""
    rules = RuleSet([allow("a/+")], decisions_max=10)
    many = [rules.rights(Identity(client_id=f"c{number}")) for number in range(3)]
    for number in range(25):
        for rights in many:
            assert rights.may_publish(b"a/%d" % number)
            assert not rights.may_publish(b"b/%d" % number)
            assert rules.remembered <= 10
    assert rules.remembered > 0


def test_long_topics_are_decided_and_not_remembered() -> None:
    """Clients choose their length, so they would fill the memory."""
    rules = RuleSet([allow("a/#")])
    assert rules.rights(ALICE).may_publish(b"a/" + b"x" * 1000)
    assert rules.remembered == 0


def test_hostile_filters_are_decided_in_time() -> None:
    """The longest filters that MQTT has, against rules with deny."""
    rules = [deny("a/+/secret"), deny("+/+/+/x"), allow("#")]
    assert may_read(rules, "b/" * 30_000 + "#")
    assert may_read(rules, "a/" + "+/" * 30_000 + "#")
    assert not may_read(rules, "+/" * 3 + "#")


@pytest.mark.parametrize("name", ["client_ids", "filters", "identity", "memory", "rules"])
def test_the_core_has_no_input_or_output(name: str) -> None:
    """These modules take values and return values."""
    assert not {each.partition(".")[0] for each in imported(PACKAGE / f"{name}.py")} & NOT_IN_CORE
