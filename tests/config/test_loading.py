"""Tests of `fanout.config.loading`: from a file to a configuration, or to every fault at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanout.config import load_config, parse_config
from fanout.config.loading import parse_tables
from fanout.config.translation import SECTIONS, section_keys
from fanout.errors import ConfigError, ConfigFault
from tests.config.faults import LINK, NODE, SELECTOR, SERVER, faults_of

SYNTAX_HINT = 'Correct the TOML there: text stands in "quotes", a list in [brackets], and each key is given once.'


def test_a_file_is_loaded(tmp_path: Path) -> None:
    """A path may be text or a path; a byte order mark is ignored."""
    file = tmp_path / "edge.toml"
    file.write_text("\ufeff" + NODE + SERVER, encoding="utf-8")
    assert load_config(file) == load_config(str(file)) == parse_config(NODE + SERVER, path="edge.toml")


def test_the_role_is_checked_when_it_is_known(tmp_path: Path) -> None:
    """A primary's file does not do for a secondary."""
    file = tmp_path / "edge.toml"
    file.write_text(NODE + SERVER)
    load_config(file, role="primary")
    with pytest.raises(ConfigError) as caught:
        load_config(file, role="secondary")
    assert [fault.key for fault in caught.value.faults] == ["link"]


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """The error has the path, the reason and a hint."""
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none.toml")
    assert str(caught.value) == (
        f"{tmp_path}/none.toml: cannot read the configuration file: no such file or directory. Check the path."
    )
    assert caught.value.path == str(tmp_path / "none.toml")


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    """Any failure of reading is an error of the configuration."""
    with pytest.raises(ConfigError, match=r"it is a directory, and not a regular file\. Check the path\.$"):
        load_config(tmp_path)


def test_a_file_without_permission_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is another one then; the failure is made, since tests may run as root."""

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, os.strerror(13), str(path))

    monkeypatch.setattr("fanout.config.loading.open_regular", refuse)
    with pytest.raises(ConfigError, match=r"permission denied\. Check its permissions\.$"):
        load_config(tmp_path / "edge.toml")


def test_a_reason_is_given_even_when_the_system_gives_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some errors of the system have no text."""

    def fail(path: Path) -> bytes:
        raise OSError

    monkeypatch.setattr("fanout.config.loading.open_regular", fail)
    with pytest.raises(ConfigError, match="the system gives no reason"):
        load_config(tmp_path / "edge.toml")


def test_a_file_that_is_not_utf_8_is_told_with_its_place(tmp_path: Path) -> None:
    """TOML is UTF-8; the first byte that is not has a line and a column."""
    file = tmp_path / "edge.toml"
    file.write_bytes(b'[node]\nid = "caf\xe9"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value) == f"{file}: line 2, column 10: this is not UTF-8. Save the file as UTF-8."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[node\n", "line 1, column 6: expected ']' at the end of a table declaration"),
        ("[node]\nid = edge\n", "line 2, column 6: invalid value"),
        ("[node]\nid = ", "line 2, column 6: invalid value"),
        ('[node]\nid = "a', "line 2, column 8: unterminated string"),
        ("a = 1\na = 2\n", "line 2, column 6: the key a is given a second time"),
        ("[node]\n[node]\n", "line 2, column 6: the section [node] is given a second time"),
        ("[log.ship]\n[log.ship]\n", "line 2, column 10: the section [log.ship] is given a second time"),
    ],
)
def test_a_slip_in_the_toml_is_told_with_its_place(text: str, problem: str) -> None:
    """Line and column count from 1, at the end of the file too."""
    assert faults_of(text) == [("", problem, SYNTAX_HINT)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "[" * 100_000, "maximum recursion depth exceeded"),
        ("a = " + "9" * 10_000, "Exceeds the limit"),
    ],
)
def test_toml_beyond_the_parser_is_told(text: str, words: str) -> None:
    """What the parser cannot hold is an error of the configuration like any other."""
    [(key, problem, hint)] = faults_of(text)
    assert key == ""
    assert problem.startswith(f"the TOML cannot be read: {words}")
    assert hint == "Simplify the file."


def test_a_client_identifier_is_made_of_node_and_link() -> None:
    """It is stable over restarts, so that the session can be resumed."""
    [link] = parse_config(NODE + SERVER + LINK + SELECTOR, path="edge.toml").links
    assert link.client_id == "fanout-edge-1-plant"
    [link] = parse_config(NODE + SERVER + LINK + 'client_id = "own"\n' + SELECTOR, path="edge.toml").links
    assert link.client_id == "own"


def test_all_faults_are_told_at_once() -> None:
    """Faults of values and faults between values, in one error with one line each."""
    text = """
        [node]
        id = "a b"
        [server]
        listen = ["mqtts://a"]
        write_buffer_low_bytes = 2_000_000
        [[link]]
        name = "plant"
        primary = "mqtt://a"
        keep_alive_s = 0
        [[link.selector]]
        filter = "a/+/c"
        qos = 7
        [[link.selector]]
        filter = "a/b/#"
        [[link]]
        name = "plant"
        primary = "mqtt://b"
        selectors = []
    """
    with pytest.raises(ConfigError) as caught:
        parse_config(text, path="edge.toml")
    assert [fault.key for fault in caught.value.faults] == [
        "node.id",
        "server.listen[0]",
        "link[0].selector[0].qos",
        "link[0].keep_alive_s",
        "link[1].selectors",
        "server.write_buffer_low_bytes",
        "link[1].name",
        "link[1].selector",
        "link[0].selector[1].filter",
    ]
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    assert lines[0].startswith('edge.toml: node.id: "a b" cannot be part of')


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ("[node]\nid = 5\n" + SERVER, "node.id"),
        (NODE + '[server]\nlisten = ["x"]\n[http]\nlisten = "127.0.0.1:1884"\n', "server.listen[0]"),
        (NODE + '[server]\nlisten = ["mqtt://127.0.0.1:8080"]\n[http]\nlisten = "x"\n', "http.listen"),
        (
            NODE + SERVER + "write_buffer_low_bytes = 1\nwrite_buffer_high_bytes = 1024\n",
            "server.write_buffer_low_bytes",
        ),
        (
            NODE + SERVER + "write_buffer_low_bytes = 2_000_000\nwrite_buffer_high_bytes = 1\n",
            "server.write_buffer_high_bytes",
        ),
        (NODE + SERVER + LINK + "retry_min_s = 0\nretry_max_s = 0.02\n" + SELECTOR, "link[0].retry_min_s"),
        (NODE + SERVER + LINK + "retry_min_s = 60\nretry_max_s = 0\n" + SELECTOR, "link[0].retry_max_s"),
        (
            NODE + SERVER + LINK + "username = 1\npassword_file = 'f'\nversion = 4\n" + SELECTOR,
            "link[0].username",
        ),
        (NODE + SERVER + LINK + "version = 6\n" + SELECTOR, "link[0].version"),
        (
            NODE + SERVER + LINK + SELECTOR + LINK.replace("plant", "b") + SELECTOR + "prefix = 'b'\n",
            "link[1].selector[0].prefix",
        ),
        (
            NODE + SERVER + LINK + SELECTOR + "exclude = ['plant/a#']\n[[link.selector]]\nfilter = 'plant/a'\n",
            "link[0].selector[0].exclude[0]",
        ),
        (
            NODE + SERVER + LINK + SELECTOR + "[[link.selector]]\nfilter = '#a'\n",
            "link[0].selector[1].filter",
        ),
        (NODE + SERVER + LINK.replace('"plant"', "5") + SELECTOR, "link[0].name"),
        (NODE + SERVER + LINK.replace('"mqtt://primary-host"', "5") + SELECTOR, "link[0].primary"),
        (NODE + SERVER + LINK + "client_id = 5\n" + SELECTOR, "link[0].client_id"),
        (NODE + SERVER + LINK + "selector = 5\n", "link[0].selector"),
        ("server = 5\n" + NODE, "server"),
        ("link = [5]\n" + NODE + SERVER, "link[0]"),
        (NODE + "[[links]]\n", "links"),
        (NODE + "[serverr]\n" + LINK + SELECTOR, "serverr"),
    ],
)
def test_a_faulty_value_gives_one_fault_and_no_other(wrong: str, key: str) -> None:
    """The rules between values are not confused by a value that is itself a fault."""
    assert [fault[0] for fault in faults_of(wrong)] == [key]


def test_a_missing_node_does_not_hide_a_missing_section() -> None:
    """Both are faults of their own."""
    assert [fault[0] for fault in faults_of("", role="primary")] == ["node", "server"]


SCALARS = st.one_of(
    st.booleans(),
    st.integers(-2, 5),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["", "a", "a/#", "#", "+/a", "$SYS", "mqtt://a", "mqtt://127.0.0.1:1884", "127.0.0.1:1884", "x/"]),
    st.dates(),
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=4)


EXAMPLES = {"node.id": "a", "link.name": "a", "link.primary": "mqtt://a", "link.selector.filter": "+/a"}


def tables(section: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Make tables of a section with any keys; the required ones are there, and mostly right."""
    optional: dict[str, st.SearchStrategy[Any]] = dict.fromkeys([*section_keys(section), "unknown"], VALUES) | more
    required = {
        key: st.one_of(st.just(EXAMPLES[f"{section}.{key}"]), st.just(EXAMPLES[f"{section}.{key}"]), VALUES)
        for key in section_keys(section)
        if f"{section}.{key}" in EXAMPLES
    }
    few = st.sets(st.sampled_from(sorted(optional)), max_size=4)
    whole = few.flatmap(lambda keys: st.fixed_dictionaries({**{key: optional[key] for key in keys}, **required}))
    return st.one_of(whole, whole, whole, st.fixed_dictionaries({}, optional=optional), VALUES)


SELECTORS = tables("link.selector")
LINKS = tables("link", selector=st.one_of(st.lists(SELECTORS, max_size=3), SELECTORS))
FILES = st.fixed_dictionaries(
    {},
    optional={
        **{section: tables(section) for section in ("node", "server", "http", "pool", "log")},
        "link": st.one_of(st.lists(LINKS, max_size=3), LINKS),
        "unknown": VALUES,
    },
)


@given(FILES, st.sampled_from([None, "primary", "secondary", "tap"]))
@settings(deadline=None, max_examples=150)
def test_any_tables_give_a_configuration_or_faults(data: dict[str, Any], role: Any) -> None:
    """Whatever stands in a file, the answer is a configuration, or faults that can be read."""
    faults: tuple[ConfigFault, ...] = ()
    try:
        assert parse_tables(data, path="edge.toml", role=role).node.id
    except ConfigError as error:
        faults = error.faults
    for fault in faults:
        assert fault.problem
        assert not fault.problem.endswith(".")
        assert fault.hint.endswith((".", "?"))
        assert fault.key.partition(".")[0].partition("[")[0] in {*SECTIONS, "unknown"}
