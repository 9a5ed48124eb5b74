"""Tests of `fanout.config.translation`: the words for every kind of fault that Pydantic finds."""

from __future__ import annotations

import copy
import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanout.config.loading import parse_tables
from fanout.config.translation import SECTIONS, section_keys, translate
from fanout.errors import ConfigError
from tests.config.faults import LINK, NODE, SELECTOR, SERVER, faults_of

FULL = Path(__file__).parents[2] / "configs" / "full.toml"
ALL_KEYS_SHOWN = "Every key is shown in configs/full.toml."
VERSIONS = "Use 5 (MQTT 5) or 4 (MQTT 3.1.1), without quotes."
"""4 is what nobody guesses for MQTT 3.1.1."""


@pytest.mark.parametrize(
    ("line", "key", "problem", "hint"),
    [
        (
            'qos_max = "2"',
            "qos_max",
            'must be a whole number, but is the text "2"',
            "Write it without quotes. The default is 2.",
        ),
        (
            'qos_max = "two"',
            "qos_max",
            'must be a whole number, but is the text "two"',
            "Write the number alone, without quotes. The default is 2.",
        ),
        (
            'queue_bytes_max = "64MiB"',
            "queue_bytes_max",
            'must be a whole number, but is the text "64MiB"',
            "Write the number of bytes alone, without quotes. The default is 67108864.",
        ),
        (
            'connect_timeout_s = "1 min"',
            "connect_timeout_s",
            'must be a number, but is the text "1 min"',
            "Write the number of seconds alone, without quotes. The default is 5.0.",
        ),
        ("qos_max = 1.5", "qos_max", "must be a whole number, but is the number 1.5", "The default is 2."),
        ("qos_max = true", "qos_max", "must be a whole number, but is true", "The default is 2."),
        ("qos_max = false", "qos_max", "must be a whole number, but is false", "The default is 2."),
        ("qos_max = [2]", "qos_max", "must be a whole number, but is a list", "The default is 2."),
        ("qos_max = {}", "qos_max", "must be a whole number, but is a table", "The default is 2."),
        (
            "qos_max = 2020-01-01",
            "qos_max",
            "must be a whole number, but is a date or a time",
            "The default is 2.",
        ),
        ("qos_max = 3", "qos_max", "3 is too large; the largest value is 2", "The default is 2."),
        ("qos_max = -1", "qos_max", "-1 is too small; the smallest value is 0", "The default is 2."),
        (
            f"qos_max = {'9' * 100}",
            "qos_max",
            f"{'9' * 60} is too large; the largest value is 2",
            "The default is 2.",
        ),
        (
            "queue_bytes_max = 2_000_000_000_000",
            "queue_bytes_max",
            "2000000000000 is too large; the largest value is 1099511627776",
            "The default is 67108864.",
        ),
        (
            'connect_timeout_s = "0.5"',
            "connect_timeout_s",
            'must be a number, but is the text "0.5"',
            "Write it without quotes. The default is 5.0.",
        ),
        (
            "connect_timeout_s = 0",
            "connect_timeout_s",
            "0 is too small; the smallest value is 0.01",
            "The default is 5.0.",
        ),
        ("connect_timeout_s = inf", "connect_timeout_s", "inf is not a finite number", "The default is 5.0."),
        ("connect_timeout_s = nan", "connect_timeout_s", "nan is not a finite number", "The default is 5.0."),
        (
            'listen = "mqtt://a"',
            "listen",
            'must be a list, but is the text "mqtt://a"',
            'Write ["mqtt://a"].',
        ),
        ("listen = 1884", "listen", "must be a list, but is the number 1884", ALL_KEYS_SHOWN),
        ("listen = []", "listen", "the list is empty", "Write at least one address."),
        ("listen = [1884]", "listen[0]", "must be text in quotes, but is the number 1884", ALL_KEYS_SHOWN),
    ],
)
def test_a_wrong_value_is_told_with_its_default(line: str, key: str, problem: str, hint: str) -> None:
    """The fault says what the value is, what it must be, and what holds without it."""
    assert faults_of(f"{NODE}{SERVER}{line}\n") == [(f"server.{key}", problem, hint)]


def test_long_text_is_cut() -> None:
    """A value of any length gives a sentence that can be read."""
    [(_, problem, _)] = faults_of(f'{NODE}{SERVER}qos_max = "{"x" * 100}"\n')
    assert problem == f'must be a whole number, but is the text "{"x" * 60}"...'


@pytest.mark.parametrize(
    ("text", "key", "problem", "hint"),
    [
        ("[http]\nlisten = 8080", "http.listen", "the number 8080", 'The default is "127.0.0.1:8080".'),
        ("[log]\ndirectory = 5", "log.directory", "the number 5", 'The default is "var/replication-log".'),
        (
            f"{LINK}control_topic = 5\n{SELECTOR}",
            "link[0].control_topic",
            "the number 5",
            'The default is "fanout/control".',
        ),
        (f"{LINK}client_id = 5\n{SELECTOR}", "link[0].client_id", "the number 5", ALL_KEYS_SHOWN),
        (f"{LINK}username = []\n{SELECTOR}", "link[0].username", "a list", ALL_KEYS_SHOWN),
    ],
)
def test_text_without_quotes_is_told_with_its_default(text: str, key: str, problem: str, hint: str) -> None:
    """Addresses and paths have their defaults in the form of the file."""
    assert faults_of(f"{NODE}{SERVER}{text}\n") == [(key, f"must be text in quotes, but is {problem}", hint)]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        (SERVER, "node", 'Add a line [node] and below it id = "edge-1", with a name of your choice.'),
        (f"[node]\n{SERVER}", "node.id", 'Add id = "edge-1", with a name of your choice.'),
        (
            f"{NODE}{SERVER}[access.http]\n",
            "access.http.url",
            'Add url = "http://127.0.0.1:9000/mqtt", with the address of the service.',
        ),
        (
            f'{NODE}{SERVER}[[access.rule]]\nallow = "read"\n',
            "access.rule[0].filter",
            'Add filter = "plant/#", with the Topic Filter of the rule.',
        ),
        (
            f"{NODE}{SERVER}[[server.listener]]\n",
            "server.listener[0].address",
            'Add address = "mqtts://0.0.0.0:8883", or another address.',
        ),
        (
            f'{NODE}{SERVER}[[link]]\nprimary = "mqtt://a"\n{SELECTOR}',
            "link[0].name",
            'Add name = "plant", with a name of your choice.',
        ),
        (
            f'{NODE}{SERVER}[[link]]\nname = "a"\n{SELECTOR}',
            "link[0].primary",
            'Add primary = "mqtt://host:1883".',
        ),
        (
            f"{NODE}{SERVER}{LINK}[[link.selector]]\n",
            "link[0].selector[0].filter",
            'Add filter = "plant/#", with the Topic Filter to replicate.',
        ),
    ],
)
def test_what_is_missing_is_told_with_an_example(text: str, key: str, hint: str) -> None:
    """Every key without a default has a hint of its own."""
    assert faults_of(text) == [(key, "is missing", hint)]


def test_every_key_without_a_default_has_a_hint() -> None:
    """No required key can be added without words for its absence."""
    required = [
        (section, key)
        for section in SECTIONS
        for key, default in section_keys(section).items()
        if default is dataclasses.MISSING
    ]
    assert required == [
        ("", "node"),
        ("node", "id"),
        ("server.listener", "address"),
        ("access.http", "url"),
        ("access.rule", "filter"),
        ("log.ship", "to"),
        ("link", "name"),
        ("link", "primary"),
        ("link.selector", "filter"),
    ]


@pytest.mark.parametrize(
    ("text", "key", "problem", "hint"),
    [
        ("[serverr]", "serverr", "there is no such section", 'Did you mean "server"?'),
        ("[[links]]", "links", "there is no such section", 'Did you mean "link"?'),
        ("[[selector]]", "selector", "there is no such section", "Write [[link.selector]]."),
        ("[server]\nQoS-max = 1", "server.QoS-max", "[server] has no such key", 'Did you mean "qos_max"?'),
        (
            "[server]\n[http]\nzzz = 1",
            "http.zzz",
            "[http] has no such key",
            "Its keys are listen, agent_listen, token_file, hosts, report, streams_max, certificate_file, key_file.",
        ),
        (
            f"[server]\n{LINK}{SELECTOR}username = 'a'",
            "link[0].selector[0].username",
            "[[link.selector]] has no such key",
            "It is a key of [[link]]; write it there, above [[link.selector]].",
        ),
        (
            f"[server]\n{LINK}qos = 1\n{SELECTOR}",
            "link[0].qos",
            "[[link]] has no such key",
            "It is a key of [[link.selector]]; write it there.",
        ),
        (
            f"[server]\n{LINK}password = 's3cret'\n{SELECTOR}",
            "link[0].password",
            "the password itself must not be in this file",
            "Use password_file or password_env.",
        ),
        (
            "[server]\nmax_payload = 5",
            "server.max_payload",
            "[server] has no such key",
            "It is a key of [retained] and [[link.selector]]; write it there.",
        ),
        (
            "[server]\n[retained]\nmax_messages = 5",
            "retained.max_messages",
            "the limits have a key each",
            "Use topics_max of [[link]] for values of a primary, and retained_topics_max of [server] for own values.",
        ),
        (
            "[server]\n[retained]\nstorage = 'tape'",
            "retained.storage",
            'the text "tape" is not possible here',
            'Use "ram", "disc" or "disc_only".',
        ),
    ],
)
def test_an_unknown_key_is_told_with_what_was_meant(text: str, key: str, problem: str, hint: str) -> None:
    """A misspelt, misplaced or refused key gets a hint that fits; its value is not repeated."""
    assert faults_of(f"{NODE}{text}\n") == [(key, problem, hint)]


def test_a_key_before_the_first_section_is_told_where_it_belongs() -> None:
    """TOML takes a key above every section for one of the top level."""
    assert faults_of(f'listen = "a:1"\nrole = "tap"\n{NODE}{SERVER}') == [
        (
            "listen",
            "there is no such key before the first section",
            "It is a key of [server] and [http] and [pool]; write it there.",
        ),
        (
            "role",
            "the file does not decide the role",
            'Remove it, and start the node with "fanout primary", "fanout secondary" or "fanout tap".',
        ),
    ]


@pytest.mark.parametrize(
    ("text", "key", "problem", "hint"),
    [
        (
            "server = 5",
            "server",
            "must be a section, but is the number 5",
            "Write [server] on a line of its own, its keys below it.",
        ),
        (
            "link = 'a'",
            "link",
            'must be a list of tables, but is the text "a"',
            "Write [[link]], with two brackets.",
        ),
        (
            "[link]\nname = 'a'",
            "link",
            "must be a list of tables, but is a table",
            "Write [[link]], with two brackets.",
        ),
        (
            "link = [5]",
            "link[0]",
            "must be a section, but is the number 5",
            "Write [[link]] on a line of its own, its keys below it.",
        ),
        (
            "[access.rule]\nfilter = '#'",
            "access.rule",
            "must be a list of tables, but is a table",
            "Write [[access.rule]], with two brackets.",
        ),
        (
            f"{LINK}selector = 5\n",
            "link[0].selector",
            "must be a list of tables, but is the number 5",
            "Write [[link.selector]], with two brackets.",
        ),
        (
            f"{LINK}selector = ['#']\n",
            "link[0].selector[0]",
            'must be a section, but is the text "#"',
            "Write [[link.selector]] on a line of its own, its keys below it.",
        ),
    ],
)
def test_what_should_be_a_section_is_told_with_its_brackets(text: str, key: str, problem: str, hint: str) -> None:
    """One bracket or two: the hint shows the line."""
    rest = "" if text.startswith("server") else SERVER
    before = text.startswith(("server", "link ="))
    assert faults_of(f"{text}\n{NODE}{rest}" if before else f"{NODE}{rest}{text}\n") == [(key, problem, hint)]


@pytest.mark.parametrize(
    ("section", "line", "problem", "hint"),
    [
        ("link[0]", "version = 3", "the number 3 is not possible here", VERSIONS),
        ("link[0]", 'version = "5"', 'the text "5" is not possible here', VERSIONS),
        (
            "link[0]",
            'retain_policy = "all"',
            'the text "all" is not possible here',
            'Use "bridge" or "keep".',
        ),
        (
            "link[0].selector[0]",
            'writes = "allow"',
            'the text "allow" is not possible here',
            'Use "reject" or "forward".',
        ),
    ],
)
def test_a_choice_is_told_with_its_values(section: str, line: str, problem: str, hint: str) -> None:
    """A key with a few values names them."""
    in_link, in_selector = (f"{line}\n", "") if section == "link[0]" else ("", f"{line}\n")
    text = f"{NODE}{SERVER}{LINK}{in_link}{SELECTOR}{in_selector}"
    assert faults_of(text) == [(f"{section}.{line.partition(' ')[0]}", problem, hint)]


def test_an_error_without_words_of_our_own_keeps_those_of_pydantic() -> None:
    """A kind of error that Pydantic may add one day is still told."""
    fault = translate(
        {"type": "new_kind", "loc": ("server", "qos_max"), "msg": "Input is odd", "input": 1},
        data={"server": {}},
    )
    assert (fault.key, fault.problem, fault.hint) == ("server.qos_max", "Input is odd", "The default is 2.")


def test_a_key_of_a_table_below_is_told_with_that_table_alone() -> None:
    """`filter` in a link belongs to its selector, whatever else has a key of that name."""
    [fault, _] = faults_of(f'{NODE}{SERVER}{LINK}filter = "plant/#"\n')
    assert fault == (
        "link[0].filter",
        "[[link]] has no such key",
        "It is a key of [[link.selector]]; write it there.",
    )


def test_an_address_of_the_list_is_shown_by_an_example_of_one() -> None:
    """Not by that of the hook, which is read by the same rules."""
    [fault] = faults_of(f'{NODE}{SERVER}{LINK}count_url = "emqx:18083"\n{SELECTOR}')
    assert fault[2] == 'Write it as in "http://127.0.0.1:18083/api/v5/mqtt/retainer/messages".'


def _places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the way to every table, list and value of a file."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*path, index))


@pytest.mark.parametrize("wrong", ["a\nb\x1b[31m", 5, True, [], [5], {}, [{}]])
def test_no_value_anywhere_is_told_in_the_words_of_pydantic(wrong: object) -> None:
    """In the place of each section, list and value of the full file: every fault has a hint, on a line of its own."""
    full = tomllib.loads(FULL.read_text())
    told = 0
    for place in _places(full):
        data: Any = copy.deepcopy(full)
        table = data
        for part in place[:-1]:
            table = table[part]
        table[place[-1]] = wrong
        try:
            parse_tables(data, path="full.toml")
        except ConfigError as error:
            for fault in error.faults:
                told += 1
                assert fault.hint, fault
                assert str(fault).isprintable(), fault
                assert not re.search(r"nput|[Vv]alue error|should|valid ", fault.problem), fault
    assert told > 10
