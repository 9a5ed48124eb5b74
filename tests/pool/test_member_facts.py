"""What members tell each other: it comes through as it was, and nothing malformed is believed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.chain.cut import Cut, RetainedSet
from fanout.pool.member_facts import (
    DOCUMENT_BYTES_MAX,
    PROTOCOL,
    MemberAnswer,
    MemberFacts,
    decode_answer,
    encode_answer,
)

FACTS = MemberFacts(
    node="edge-2",
    instance="00ff" * 4,
    version="0.1.0",
    config_digest="ab" * 8,
    state="ready",
    topics=200_000,
    moved_in=2,
    moved_out=1,
    sessions=14,
    lag_s=0.25,
    client_address="edge-2:1883",
    http_port=8080,
    http_tls=True,
)
ANSWER = MemberAnswer(FACTS, {"plant": Cut("123 4", (RetainedSet(2, 2**63), None))})


def document(**changes: Any) -> bytes:
    """Return the document of a member, with other values."""
    return json.dumps({**json.loads(encode_answer(ANSWER)), **changes}).encode()


def test_facts_come_through() -> None:
    """A lag that is not known stays unknown; and the version of the protocol is in the document."""
    assert decode_answer(encode_answer(ANSWER)) == ANSWER
    assert decode_answer(document(lag_s=None)).facts.lag_s is None
    assert json.loads(encode_answer(ANSWER))["protocol"] == PROTOCOL


def test_a_later_version_is_understood() -> None:
    """Keys that it adds are ignored."""
    assert decode_answer(document(mood="good", moods=[1, {}])) == ANSWER


def test_an_earlier_version_is_understood() -> None:
    """It does not say where clients reach it."""
    earlier = json.loads(document())
    del earlier["client_address"]
    assert decode_answer(json.dumps(earlier).encode()).facts == dataclasses.replace(FACTS, client_address=None)


@pytest.mark.parametrize(
    "changes",
    [
        {"node": "../etc"},
        {"node": None},
        {"instance": "me"},
        {"instance": 7},
        {"config_digest": "AB" * 8},
        {"version": 1},
        {"state": "fine"},
        {"state": ["ready"]},
        {"topics": -1},
        {"topics": True},
        {"topics": 1.5},
        {"sessions": "14"},
        {"lag_s": -0.1},
        {"lag_s": "soon"},
        {"lag_s": False},
        {"cuts": []},
        {"client_address": "edge-2:1883\n"},
        {"client_address": "a" * 1025},
        {"client_address": 7},
    ],
)
def test_a_wrong_value_is_refused(changes: dict[str, Any]) -> None:
    """Each value has the form that this node would write."""
    with pytest.raises(ValueError, match=f"no legal {next(iter(changes))}"):
        decode_answer(document(**changes))


def test_a_cut_that_is_none_is_refused() -> None:
    """With the whole answer."""
    with pytest.raises(ValueError, match="cut"):
        decode_answer(document(cuts={"plant": {"marker": "123 4", "sets": [7]}}))


def test_a_missing_value_is_refused() -> None:
    """There is no default for what a member did not say, but for what may be unknown and what older ones do not say."""
    optional = {"protocol", "lag_s", "client_address", "keeps_copies"}
    optional |= {"copies_are_right", "sessions_copied", "copies_held", "copies_late_s", "history_s", "history_used"}
    optional |= {"epoch_counter", "http_port", "http_tls", "interruptions"}
    for key in json.loads(encode_answer(ANSWER)).keys() - optional:
        rest = json.loads(encode_answer(ANSWER))
        del rest[key]
        with pytest.raises(ValueError, match=f"no legal {key}"):
            decode_answer(json.dumps(rest).encode())


def test_texts_of_a_member_are_made_printable() -> None:
    """A version goes to terminals and log lines."""
    assert decode_answer(document(version="1\x1b[2J\u202e")).facts.version == "1\ufffd[2J\ufffd"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"null", b"7", b"\xff", b"{", b'{"a": NaN}', b"[" * 5000, b" " * (DOCUMENT_BYTES_MAX + 1)]
)
def test_what_is_no_document_is_refused(raw: bytes) -> None:
    """Whatever comes, it is a ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011  # each has words of its own
        decode_answer(raw)


@given(st.binary(max_size=200))
def test_any_bytes_give_facts_or_a_refusal(raw: bytes) -> None:
    """Nothing else leaves the reader."""
    try:
        decode_answer(raw)
    except ValueError:
        return
    raise AssertionError(raw)


def test_a_member_of_an_earlier_version_keeps_no_copies() -> None:
    """It says nothing of them, and whatever is no true is taken for no."""
    said = json.loads(encode_answer(ANSWER))
    for value in (None, 1, "true"):
        said["keeps_copies"] = value
        assert not decode_answer(json.dumps(said).encode()).facts.keeps_copies
    del said["keeps_copies"]
    assert not decode_answer(json.dumps(said).encode()).facts.keeps_copies
