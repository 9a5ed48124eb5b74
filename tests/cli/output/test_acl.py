"""Rights of a link as access rules of brokers: the form, and the escapes of each syntax."""

from __future__ import annotations

import re
import tomllib
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from fanout.access.identity import Identity
from fanout.access.rules import RuleSet
from fanout.cli.output.acl import AclSyntax, AclUnwritable, acl_text, syntax_of
from fanout.config import Address, LinkConfig
from fanout.config.access import rules_of
from fanout.config.loading import parse_tables
from fanout.selection import Selector

NODE = "edge-1"


def link(*selectors: Selector, username: str | None = "edge", **changes: Any) -> LinkConfig:
    """Return a link called plant."""
    return LinkConfig(
        name="plant",
        primaries=(Address("mqtt", "127.0.0.1", 1883),),
        selectors=selectors or (Selector("plant/#", writes="forward"),),
        username=username,
        **changes,
    )


def lines_for(syntax: AclSyntax, config: LinkConfig, *, comment: str) -> list[str]:
    """Return the lines that are no comments."""
    text = acl_text(config, node_id=NODE, syntax=syntax)
    assert text.endswith("\n")
    return [line for line in text.splitlines() if not line.startswith(comment)]


@pytest.mark.parametrize("syntax", [AclSyntax.MOSQUITTO, AclSyntax.FLASHMQ])
def test_mosquitto_and_flashmq_have_the_same_lines(syntax: AclSyntax) -> None:
    """A user, then a line for each right, each behind a comment that says what it is for."""
    expected = [
        "user edge",
        "topic read plant/#",
        "topic write plant/#",
        "topic read fanout/control/edge-1/plant/#",
        "topic write fanout/control/edge-1/plant/#",
        "topic read $SYS/broker/version",
        *(["topic read $SYS/+/version"] if syntax is AclSyntax.FLASHMQ else []),
        "topic read $SYS/broker/retained messages/count",
        "topic read $SYS/broker/uptime",
    ]
    assert lines_for(syntax, link(), comment="#") == expected
    text = acl_text(link(), node_id=NODE, syntax=syntax)
    assert text.startswith("# link plant of node edge-1\n")
    assert text.count("; without it: ") == len(expected) - 1


@pytest.mark.parametrize(
    ("syntax", "end"),
    [
        (AclSyntax.MOSQUITTO, ["user auditor", "topic read plant/#"]),
        (AclSyntax.EMQX, ['{allow, {username, "auditor"}, subscribe, ["plant/#"]}.']),
    ],
)
def test_the_user_for_audits_comes_second(syntax: AclSyntax, end: list[str]) -> None:
    """The rights of the link's user are what they are without it; the other one may only read."""
    comment = "#" if syntax is AclSyntax.MOSQUITTO else "%"
    alone = lines_for(syntax, link(), comment=comment)
    assert lines_for(syntax, link(audit_username="auditor"), comment=comment) == [*alone, *end]
    text = acl_text(link(audit_username="auditor"), node_id=NODE, syntax=syntax)
    assert "audit_username of link plant of node edge-1" in text
    with pytest.raises(AclUnwritable):
        acl_text(link(audit_username=" auditor"), node_id=NODE, syntax=AclSyntax.MOSQUITTO)


def test_without_a_user_the_lines_are_for_clients_without_one() -> None:
    """Mosquitto applies what stands above the first user to them; the comment says so."""
    text = acl_text(link(username=None), node_id=NODE, syntax=AclSyntax.MOSQUITTO)
    assert "user " not in re.sub("(?m)^#.*$", "", text)
    assert "above the first line 'user'" in text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("edge ", "does not keep blanks"),
        (" edge", "does not keep blanks"),
        ("edge\nuser admin", "no escapes"),
        ("ed\x1b[31mge", "no escapes"),
        ("ed\u202ege", "no escapes"),
    ],
)
def test_what_mosquittos_file_cannot_carry_is_refused(text: str, reason: str) -> None:
    """A line end in a name would be a line of its own, with rights of its own; user names and filters alike."""
    for config in (link(username=text), link(Selector(f"{text}/x" if text[0] == " " else f"x/{text}"))):
        with pytest.raises(AclUnwritable, match=reason) as caught:
            acl_text(config, node_id=NODE, syntax=AclSyntax.MOSQUITTO)
        assert str(caught.value).isprintable()


def test_emqx_gets_erlang_terms() -> None:
    """Quotes, backslashes and other characters are escaped; what EMQX would take for something else is compared."""
    config = link(
        Selector('plant/"a\\b"/ü/\n/#'),
        Selector("home/${username}/#", writes="forward"),
        Selector("eq a/#"),
        username='o"brien',
    )
    who = '{username, "o\\"brien"}'
    assert lines_for(AclSyntax.EMQX, config, comment="%%")[:4] == [
        f'{{allow, {who}, subscribe, ["plant/\\"a\\\\b\\"/\\x{{fc}}/\\x{{a}}/#"]}}.',
        f'{{allow, {who}, subscribe, [{{eq, "home/${{username}}/#"}}]}}.',
        f'{{allow, {who}, publish, [{{eq, "home/${{username}}/#"}}]}}.',
        f'{{allow, {who}, subscribe, [{{eq, "eq a/#"}}]}}.',
    ]
    assert "{allow, all, subscribe, " in acl_text(link(username=None), node_id=NODE, syntax=AclSyntax.EMQX)


def test_hivemq_gets_a_role() -> None:
    """A document that an XML parser reads back, with activity and topic of each right."""
    config = link(Selector("a<b>&c/#", writes="forward"), username="a--b")
    text = acl_text(config, node_id="n--1", syntax=AclSyntax.HIVEMQ)
    role = ElementTree.fromstring(text)
    assert role.findtext("id") == "fanout-plant"
    found = [(one.findtext("activity"), one.findtext("topic")) for one in role.iter("permission")]
    assert found[:3] == [
        ("SUBSCRIBE", "a<b>&c/#"),
        ("PUBLISH", "a<b>&c/#"),
        ("SUBSCRIBE", "fanout/control/n--1/plant/#"),
    ]
    for filters in ("home/${{clientid}}/#", "a/\x01"):
        with pytest.raises(AclUnwritable):
            acl_text(link(Selector(filters)), node_id=NODE, syntax=AclSyntax.HIVEMQ)


@pytest.mark.parametrize("username", ['o"brien\\', "edge", "\U000e0101x"])
def test_fanout_gets_rules_that_allow_it_and_nothing_else(username: str) -> None:
    """A node reads them as they are; a per cent sign in a filter is no placeholder there."""
    config = link(Selector('plant/%u/"x"/#', writes="forward"), username=username)
    text = acl_text(config, node_id=NODE, syntax=AclSyntax.FANOUT)
    assert re.sub("[\n\u0020-\u007e]", "", text) == ""
    tables = tomllib.loads(text)
    node = parse_tables({"node": {"id": "hub"}, "server": {}, "access": tables["access"]}, path="hub")
    rights = RuleSet(rules_of(node.access)).rights(Identity(user=username, client_id="fanout-edge-1-plant"))
    assert rights.may_subscribe(b'plant/%u/"x"/#')
    assert rights.may_subscribe(b"$SYS/fanout/standing")
    assert rights.may_publish(b'plant/%u/"x"/1')
    assert not rights.may_subscribe(b"plant/#")
    assert not rights.may_publish(b'plant/edge/"x"/1')


def test_a_user_with_an_asterisk_cannot_be_named_at_fanout() -> None:
    """It would stand for every client."""
    with pytest.raises(AclUnwritable, match="with \\* in it"):
        acl_text(link(username="*"), node_id=NODE, syntax=AclSyntax.FANOUT)


def test_the_list_is_for_people() -> None:
    """Access and filter of each right, printable whatever is in them."""
    text = acl_text(link(Selector("a\x1b/#"), username="x\ny"), node_id=NODE, syntax=AclSyntax.LIST)
    assert text.splitlines()[0] == "link plant of node edge-1, the user x\\ny"
    assert text.splitlines()[1].startswith("read  a\\x1b/#  (")


@pytest.mark.parametrize(
    ("server", "syntax"),
    [
        ("mosquitto version 2.0.11", AclSyntax.MOSQUITTO),
        ("fanout 0.1.0", AclSyntax.FANOUT),
        ("FlashMQ 1.2", AclSyntax.FLASHMQ),
        ("EMQX 5.8", AclSyntax.EMQX),
        ("", AclSyntax.LIST),
        ("list", AclSyntax.LIST),
        ("nats", AclSyntax.LIST),
    ],
)
def test_a_server_is_known_by_what_it_says_it_is(server: str, syntax: AclSyntax) -> None:
    """Others get the list."""
    assert syntax_of(server) is syntax
