"""Text of strangers, escaped."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.escaping import printable, printable_json, printable_lines

TEXTS = st.text(st.characters(max_codepoint=sys.maxunicode, exclude_categories=()), max_size=40)
FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plant/line 1/°C/温度/[bold]", "plant/line 1/°C/温度/[bold]"),
        ("a\x1b[2J\x07", "a\\x1b[2J\\x07"),
        ("a\r\nb\tc\x00", "a\\r\\nb\\tc\\x00"),
        ("\x7f\x9b31m\x85", "\\x7f\\x9b31m\\x85"),
        ("\u202eabc\u2066\u200f", "\\u202eabc\\u2066\\u200f"),
        ("a\u200bb\u00adc\ufeff\u2060", "a\\u200bb\\xadc\\ufeff\\u2060"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("a\u00a0b\u3000", "a\\xa0b\\u3000"),
        ("a\u3164b\u115f\ufe0f\u2800\u034f", "a\\u3164b\\u115f\\ufe0f\\u2800\\u034f"),
        ("\ud800\udcff", "\\ud800\\udcff"),
        ("\U000e0001\U000e0100\U0010ffff", "\\U000e0001\\U000e0100\\U0010ffff"),
        ("a\\nb", "a\\nb"),
    ],
)
def test_what_fools_a_reader_is_escaped(text: str, shown: str) -> None:
    """Cursors, line ends, directions, blanks that are no space, what is not seen: as an escape; the rest as it is."""
    assert printable(text) == shown


@given(TEXTS)
def test_printable_is_one_line_of_characters_that_are_seen(text: str) -> None:
    """Of any text nothing is left that a terminal obeys, it can be encoded, and again it stays as it is."""
    shown = printable(text)
    assert not FORBIDDEN & {unicodedata.category(one) for one in shown}
    assert len(shown.splitlines()) <= 1
    assert shown.encode().decode() == shown
    assert printable(shown) == shown


def test_printable_cuts_where_it_is_told_to() -> None:
    """Only there; how long the text was is said."""
    assert printable("\x00" * 5, length_max=5) == "\\x00" * 5
    assert printable("\x00" + "x" * 65_534, length_max=3) == "\\x00xx… (65,535 characters)"
    assert printable("x" * 70_000) == "x" * 70_000


def test_printable_lines_keeps_the_line_ends() -> None:
    """And nothing else that ends a line; none but the first begins where a message begins."""
    assert printable_lines("a\x1b\n\nb\r\u2028c\n") == "a\\x1b\n\n  b\\r\\u2028c\n"


@given(TEXTS, st.sampled_from([None, 2]), st.booleans())
def test_printable_json_means_the_same(text: str, indent: int | None, ascii_only: bool) -> None:
    """The document is unchanged, and its text is safe to print."""
    document = {text: [text, {"a": text}]}
    shown = printable_json(json.dumps(document, indent=indent, ensure_ascii=ascii_only))
    assert json.loads(shown) == {_paired(text): [_paired(text), {"a": _paired(text)}]}
    assert all(printable(line) == line for line in shown.split("\n"))


def test_printable_json_stays_readable() -> None:
    """Letters are not escaped, whatever their language."""
    assert printable_json('{"a": "Küche\x7f\u202e\U000e0001"}') == '{"a": "Küche\\u007f\\u202e\\udb40\\udc01"}'


def _paired(text: str) -> str:
    """Return text as JSON knows it: two surrogates that belong together are one character."""
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
