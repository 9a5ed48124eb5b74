"""Tests of `fanout.config.access`: strict values, their words, and the rules between them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from fanout.access.rules import Rule
from fanout.config import values
from fanout.config.access import AccessConfig, HookConfig, ReservedSection, RuleSection, find_access_faults, rules_of
from fanout.errors import ConfigFault

ADAPTER = TypeAdapter(AccessConfig)

FULL = """
anonymous = "never"
password_file = "secrets/users"
password_checks_max = 4
password_queue_max = 10
password_remember_s = 0
password_remembered_max = 5
decisions_max = 100

[http]
url = "https://auth.example:9000/mqtt?site=1"
actions = ["connect", "subscribe", "publish"]
timeout_s = 1
requests_max = 2
queue_max = 3
remember_s = 0
remembered_max = 4

[[rule]]
allow = "read"
filter = "plant/#"

[[rule]]
deny = "all"
user = "alice"
client_id = "sensor-*"
filter = "home/%u/#"
"""


def load(text: str) -> AccessConfig:
    """Read a section."""
    return ADAPTER.validate_python(tomllib.loads(text))


def errors_of(text: str) -> list[tuple[tuple[int | str, ...], str, dict[str, Any]]]:
    """Return what is wrong: place, kind, context."""
    with pytest.raises(ValidationError) as caught:
        load(text)
    return [(error["loc"], error["type"], error.get("ctx", {})) for error in caught.value.errors()]


def faults_of(text: str) -> list[ConfigFault]:
    """Return what is wrong between the keys."""
    return find_access_faults(load(text))


def test_every_key_is_read() -> None:
    """The keys of the file reach the fields, and whole numbers do for seconds."""
    config = load(FULL)
    assert config == AccessConfig(
        anonymous="never",
        password_file=Path("secrets/users"),
        password_checks_max=4,
        password_queue_max=10,
        password_remember_s=0.0,
        password_remembered_max=5,
        decisions_max=100,
        http=HookConfig(
            url="https://auth.example:9000/mqtt?site=1",
            actions=("connect", "subscribe", "publish"),
            timeout_s=1.0,
            requests_max=2,
            queue_max=3,
            remember_s=0.0,
            remembered_max=4,
        ),
        rules=(
            RuleSection(filter="plant/#", allow="read"),
            RuleSection(filter="home/%u/#", deny="all", user="alice", client_id="sensor-*"),
        ),
    )
    assert find_access_faults(config) == []


def test_an_empty_section_is_the_default() -> None:
    """This machine only, no rules, nobody asked."""
    config = load("")
    assert config == AccessConfig()
    assert (config.anonymous, config.password_file, config.http, config.rules) == ("loopback", None, None, ())


def test_rules_become_rules() -> None:
    """In their order."""
    assert rules_of(load(FULL)) == (
        Rule(allows=True, direction="read", filter="plant/#"),
        Rule(allows=False, direction="all", filter="home/%u/#", user="alice", client_id="sensor-*"),
    )


@pytest.mark.parametrize(
    ("text", "place", "kind"),
    [
        ('anonymous = "yes"', ("anonymous",), "literal_error"),
        ("anonymous = true", ("anonymous",), "literal_error"),
        ("password_file = 1", ("password_file",), "string_type"),
        ("password_checks_max = 0", ("password_checks_max",), "greater_than_equal"),
        ("password_checks_max = 1000", ("password_checks_max",), "less_than_equal"),
        ('password_queue_max = "1"', ("password_queue_max",), "int_type"),
        ("password_remember_s = nan", ("password_remember_s",), "finite_number"),
        ('password = "secret"', ("password",), "unexpected_keyword_argument"),
        ("[http]", ("http", "url"), "missing"),
        ('[http]\nurl = "http://a"\nactions = ["read"]', ("http", "actions", 0), "literal_error"),
        ('[http]\nurl = "http://a"\nactions = "connect"', ("http", "actions"), "tuple_type"),
        ('[http]\nurl = "http://a"\ntimeout_s = 0', ("http", "timeout_s"), "greater_than_equal"),
        ('[[rule]]\nallow = "read"', ("rule", 0, "filter"), "missing"),
        ('[[rule]]\nfilter = "a"\nallow = "subscribe"', ("rule", 0, "allow"), "literal_error"),
        ('[[rule]]\nfilter = "a"\nallow = "read"\nname = "x"', ("rule", 0, "name"), "unexpected_keyword_argument"),
        ('[rule]\nfilter = "a"', ("rule",), "tuple_type"),
    ],
)
def test_wrong_types_and_limits_are_told_by_pydantic(text: str, place: tuple[int | str, ...], kind: str) -> None:
    """The kinds of error are those that the configuration has sentences for."""
    from fanout.config.translation import _SENTENCES

    assert [(found, name) for found, name, _ in errors_of(text)] == [(place, kind)]
    assert kind in _SENTENCES


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('password_file = ""', "it is empty"),
        ('password_file = "a\\u0000"', "U+0000"),
        ('[[rule]]\nfilter = "a/#/b"\nallow = "read"', '"#" in "a/#/b"'),
        ('[[rule]]\nfilter = "%x"\nallow = "read"', "is not %u"),
        ('[[rule]]\nfilter = "$share/g/a"\nallow = "read"', "Shared Subscription"),
        ('[[rule]]\nfilter = "a"\nallow = "read"\nuser = "al*"', "is not a user name"),
        ('[[rule]]\nfilter = "a"\nallow = "read"\nuser = "a\\u0000"', "is not a user name"),
        ('[[rule]]\nfilter = "a"\nallow = "read"\nclient_id = ""', "no Client Identifier"),
        ('[http]\nurl = "http://a"\nactions = []', "the list is empty"),
        ('[http]\nurl = "http://user:secret@a/"', "a user name or a password"),
        ('[http]\nurl = "ftp://a/"', "is not an address of HTTP"),
        ('[http]\nurl = "a:80"', "is not an address of HTTP"),
        ('[http]\nurl = "http:///mqtt"', "is not an address of HTTP"),
        ('[http]\nurl = "http://a:0/"', "is not an address of HTTP"),
        ('[http]\nurl = "http://a:99999/"', "is not an address"),
        ('[http]\nurl = "http://[::1/"', "is not an address"),
        ('[http]\nurl = "http://a/#x"', 'contains a "#"'),
        ('[http]\nurl = "http://a/b c"', "a blank"),
        ('[http]\nurl = "http://a/\\n"', "a blank"),
    ],
)
def test_illegal_values_have_words_and_a_hint(text: str, problem: str) -> None:
    """As everywhere in the configuration; a secret is not repeated."""
    [(_, kind, context)] = errors_of(text)
    assert kind == values.FAULT
    assert problem in context["problem"]
    assert context["hint"]
    assert "secret" not in str(context)


@pytest.mark.parametrize("url", ["http://a", "http://127.0.0.1:9000/mqtt", "http://[::1]:80/x?y=z", "https://a-b.c_d/"])
def test_addresses_that_can_be_asked(url: str) -> None:
    """Names, both kinds of IP address, with or without port and path."""
    config = load(f'[http]\nurl = "{url}"')
    assert config.http is not None
    assert config.http.url == url
    assert config.http.actions == ("connect",)


@pytest.mark.parametrize("user", ["", "*"])
def test_reserved_identifiers_are_for_one_user(user: str) -> None:
    """For every client or for nobody, nothing would be reserved."""
    config = AccessConfig(reserved=(ReservedSection(client_id="fanout-*", user=user),))
    assert [fault.key for fault in find_access_faults(config)] == ["access.reserved[0].user"]


def test_a_rule_allows_or_denies() -> None:
    """Not both, and not nothing."""
    neither, both = faults_of('[[rule]]\nfilter = "a"\n[[rule]]\nfilter = "b"\nallow = "read"\ndeny = "write"')
    assert (neither.key, neither.problem) == ("access.rule[0].allow", "is missing")
    assert (both.key, both.problem) == ("access.rule[1].deny", "allow is given too")


def test_a_bound_on_the_age_is_of_readers() -> None:
    """In a rule that lets nobody read it would do nothing."""
    assert faults_of('[[rule]]\nfilter = "a"\nallow = "read"\nmax_age_s = 2.0') == []
    for kind in ('allow = "write"', 'deny = "all"'):
        (fault,) = faults_of(f'[[rule]]\nfilter = "a"\n{kind}\nmax_age_s = 2.0')
        assert (fault.key, fault.problem) == ("access.rule[0].max_age_s", "the rule lets nobody read")


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ('allow = "all"\nfilter = "#"', 'deny = "all"\nfilter = "secret/#"'),
        ('allow = "all"\nfilter = "#"', 'deny = "read"\nfilter = "secret/#"\nuser = "bob"\nclient_id = "x"'),
        ('deny = "read"\nfilter = "+/b"', 'allow = "read"\nfilter = "%u/b"'),
        ('allow = "read"\nfilter = "a"\nuser = ""', 'deny = "read"\nfilter = "a"\nuser = ""'),
    ],
)
def test_a_rule_that_is_never_reached_is_a_fault(first: str, later: str) -> None:
    """The classic slip: the exception stands behind what it is an exception from, and has no effect."""
    [fault] = faults_of(f"[[rule]]\n{first}\n[[rule]]\n{later}")
    assert fault.key == "access.rule[1].filter"
    assert "is never reached: access.rule[0]" in fault.problem
    assert fault.hint.startswith("Put it before access.rule[0]")


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ('allow = "read"\nfilter = "#"', 'deny = "all"\nfilter = "secret/#"'),
        ('allow = "all"\nfilter = "a/+"', 'deny = "all"\nfilter = "a/#"'),
        ('allow = "all"\nfilter = "#"\nuser = "bob"', 'deny = "all"\nfilter = "a"'),
        ('allow = "all"\nfilter = "#"\nclient_id = "x*"', 'deny = "all"\nfilter = "a"\nclient_id = "xy"'),
        ('allow = "all"\nfilter = "#"', 'allow = "all"\nfilter = "$SYS/#"'),
        ('allow = "all"\nfilter = "%u/#"', 'deny = "all"\nfilter = "%u/#"'),
    ],
)
def test_a_rule_that_is_reached_sometimes_is_none(first: str, later: str) -> None:
    """For another direction, other topics, other clients."""
    assert faults_of(f"[[rule]]\n{first}\n[[rule]]\n{later}") == []
