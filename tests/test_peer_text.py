"""Text and documents of a peer, where they are taken in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.config import values
from fanout.peer_text import TEXT_CHARACTERS_MAX, clean_text, is_node_name, read_document


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", ""),
        ("link plant is down: Größe, 数", "link plant is down: Größe, 数"),
        ("\ud800", "\ufffd"),
        ("a\x1b[2Jb\x9bc\x7f", "a\ufffd[2Jb\ufffdc\ufffd"),
        ("one\r\ntwo\u2028three", "one  two three"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("x" * TEXT_CHARACTERS_MAX, "x" * TEXT_CHARACTERS_MAX),
        ("x" * (TEXT_CHARACTERS_MAX + 1), "x" * (TEXT_CHARACTERS_MAX - 1) + "…"),
    ],
)
def test_text_is_printable_and_short(text: str, cleaned: str) -> None:
    """What a terminal, a log or JSON would trip over is replaced; a cut can be seen."""
    assert clean_text(text) == cleaned


@given(st.text(st.characters()) | st.text(st.characters(categories=["Cs", "Cc", "Cf"]), min_size=500))
def test_any_text_can_go_on_and_is_cleaned_once(text: str) -> None:
    """What is cleaned is UTF-8, on one line, bounded, and stays as it is."""
    cleaned = clean_text(text)
    cleaned.encode()
    assert cleaned.isprintable()
    assert len(cleaned) <= TEXT_CHARACTERS_MAX
    assert clean_text(cleaned) == cleaned


@pytest.mark.parametrize("value", ["", "a b", "-a", "a\n", "é", "\ud800", "a" * 65, 7, None, ["a"]])
def test_what_is_no_name_of_a_node(value: object) -> None:
    """A name is what the configuration would take."""
    assert not is_node_name(value)
    if isinstance(value, str) and value.isprintable():
        with pytest.raises(ValueError, match="cannot be part"):
            values._check_name(value)


@pytest.mark.parametrize("value", ["a", "edge-1", "A.b_c-9", "9", "a" * 64])
def test_names_of_nodes(value: str) -> None:
    """Each is a name in the configuration, too."""
    assert is_node_name(value)
    values._check_name(value)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"\xff",
        b"\xff\xfe[\x00]\x00",
        b'"\xed\xa0\x80"',
        b"[" * 90,
        b"[" * 5000,
        b"NaN",
        b"[-Infinity]",
        b"12345678901234567890",
        b"9" * 5000,
    ],
)
def test_what_is_no_document(document: bytes) -> None:
    """Everything that cannot be taken is one kind of error."""
    with pytest.raises(ValueError):  # noqa: PT011  # of several texts
        read_document(document, bytes_max=10_000)


def test_a_long_document_is_not_looked_at() -> None:
    """Its length comes first."""
    assert read_document(b'{"a": [1, -2, 1.5]}', bytes_max=19) == {"a": [1, -2, 1.5]}
    with pytest.raises(ValueError, match="more than 18 bytes"):
        read_document(b'{"a": [1, -2, 1.5]}', bytes_max=18)


@pytest.mark.parametrize(
    "text", ["," * 600_000, "[" * 600_000, '\\",' * 600_000, '"' * 1_200_000, "\\" * 600_000 + ","]
)
def test_a_text_of_any_characters_is_one_value(text: str) -> None:
    """A Topic Filter may consist of commas, brackets, quotes: a document with it has no more values for that."""
    document = json.dumps([text, "a"]).encode()
    assert read_document(document, bytes_max=len(document)) == [text, "a"]


@pytest.mark.parametrize("value", ["[]", "{}", "0", '""', '[",",[]]', '"\\\\\\""'])
def test_a_document_of_too_many_values_is_not_parsed(value: str) -> None:
    """Millions of small values would take seconds of the event loop."""
    document = f"[{','.join([value] * 600_000)}]".encode()
    with pytest.raises(ValueError, match="more than 500000 values"):
        read_document(document, bytes_max=len(document))
