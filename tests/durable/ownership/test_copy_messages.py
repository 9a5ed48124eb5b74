"""Tests of the messages about copies: what was written is read, and nothing else is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.durable.ownership.copy_messages import (
    COPY_BYTES_MAX,
    DOCUMENT_BYTES_MAX,
    CopyAnswer,
    CopyRequest,
    CopyRow,
    InheritRequest,
    PlacesRow,
    copy_request_in_steps,
    decode_copy_answer,
    decode_inherit_answer,
    decode_inherit_request,
    encode_copy_answer,
    encode_copy_request,
    encode_inherit_answer,
    encode_inherit_request,
)
from fanout.durable.ownership.copy_rules import CopyVersion, Right
from fanout.durable.ownership.epochs import NO_EPOCH, Epoch

TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
NODES = st.sampled_from(["a", "node-2", "!b"])
EPOCHS = st.builds(Epoch, st.integers(0, (1 << 62) - 1), NODES) | st.just(NO_EPOCH)
VERSIONS = st.builds(CopyVersion, EPOCHS, st.integers(0, (1 << 62) - 1))
ROWS = st.lists(
    st.builds(CopyRow, TEXTS, VERSIONS, st.none() | st.binary(max_size=50))
    | st.builds(
        PlacesRow, st.binary(max_size=50), st.lists(TEXTS, max_size=4).map(tuple), st.integers(0, (1 << 62) - 1)
    ),
    max_size=5,
)
COPIES = st.builds(CopyRequest, TEXTS, ROWS)
ANSWERS = st.builds(
    CopyAnswer, st.dictionaries(TEXTS, EPOCHS, max_size=3), *[st.lists(TEXTS, max_size=3).map(tuple)] * 3
)
REQUESTS = st.builds(
    InheritRequest, st.sampled_from(["a", "node-2"]), TEXTS, st.lists(st.tuples(TEXTS, VERSIONS), max_size=4).map(tuple)
)


def decode_copy_request(data: bytes) -> CopyRequest:
    """Return COPY, with all steps at once."""
    steps = copy_request_in_steps(data)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            request: CopyRequest = ended.value
            return request


DECODERS = (decode_copy_request, decode_copy_answer, decode_inherit_request, decode_inherit_answer)


@given(COPIES)
def test_copy_request_is_read_as_written(request: CopyRequest) -> None:
    """COPY says which process sends it, and brings the rows in their order."""
    assert decode_copy_request(encode_copy_request(request)) == request


def test_copy_request_of_another_form_is_refused() -> None:
    """A member of another version sends one: its rows are not read as if they were of this form."""
    with pytest.raises(ValueError, match="form"):
        decode_copy_request(b"\x01" + encode_copy_request(CopyRequest("i", []))[1:])


@given(ANSWERS)
def test_copy_answer_is_read_as_written(answer: CopyAnswer) -> None:
    """The answer to COPY names what was not kept, and why."""
    assert decode_copy_answer(encode_copy_answer(answer)) == answer


@given(REQUESTS)
def test_inherit_request_is_read_as_written(request: InheritRequest) -> None:
    """INHERIT names the holder, its process and the copies."""
    assert decode_inherit_request(encode_inherit_request(request)) == request


@given(st.lists(st.sampled_from(list(Right))))
def test_inherit_answer_is_read_as_written(rights: list[Right]) -> None:
    """The answer to INHERIT has one right for each copy."""
    assert decode_inherit_answer(encode_inherit_answer(rights)) == rights


@given(COPIES, st.data())
def test_cut_copy_request_is_refused(request: CopyRequest, data: st.DataObject) -> None:
    """A COPY that ends early, or has bytes behind it, is none."""
    whole = encode_copy_request(request)
    with pytest.raises(ValueError):  # noqa: PT011
        decode_copy_request(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="follow its end"):
        decode_copy_request(whole + b"\0")


@pytest.mark.parametrize("decode", DECODERS)
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_foreign_bytes_are_refused(decode: Callable[[bytes], object], data: bytes) -> None:
    """Bytes that are no message raise ValueError, and nothing else."""
    with contextlib.suppress(ValueError):
        decode(data)


@given(COPIES, ANSWERS, REQUESTS, st.data())
def test_damaged_messages_are_refused(
    copies: CopyRequest, answer: CopyAnswer, request: InheritRequest, data: st.DataObject
) -> None:
    """A message with one byte of another value is read as another one, or raises ValueError."""
    encoded = (encode_copy_request(copies), encode_copy_answer(answer), encode_inherit_request(request))
    for decode, whole in zip(DECODERS, encoded, strict=False):
        at, value = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
        with contextlib.suppress(ValueError):
            decode(whole[:at] + bytes([value]) + whole[at + 1 :])


@pytest.mark.parametrize(
    "data",
    [
        b'[{"x": [1]}, [], []]',
        b'[{"x": [-1, "a"]}, [], []]',
        b'[{"x": [4611686018427387904, "a"]}, [], []]',
        b'[{"x": [true, "a"]}, [], []]',
        b'[{"x": [1, "!!a"]}, [], []]',
        b"[[], [], []]",
        b"[{}, [1], []]",
        b"[{}, []]",
    ],
)
def test_answer_to_copy_of_another_form_is_refused(data: bytes) -> None:
    """Epochs have a bounded counter and the name of a member; lists have texts."""
    with pytest.raises(ValueError):  # noqa: PT011
        decode_copy_answer(data)


@pytest.mark.parametrize(
    "data",
    [
        b'["", "i", []]',
        b'["a", 1, []]',
        b'["a", "i", {}]',
        b'["a", "i", [["x", 1, "a"]]]',
        b'["a", "i", [["x", 1, "a", -1]]]',
        b'["a", "i", [["x", 1, "a", true]]]',
        b'["a", "i", [[1, 1, "a", 1]]]',
    ],
)
def test_inherit_request_of_another_form_is_refused(data: bytes) -> None:
    """A holder has the name of a member; a copy has a Client Identifier, an epoch and a number."""
    with pytest.raises(ValueError):  # noqa: PT011
        decode_inherit_request(data)


def test_documents_are_bounded() -> None:
    """Longer messages than the bounds are refused before they are parsed."""
    for decode in (decode_inherit_request, decode_inherit_answer):
        with pytest.raises(ValueError):  # noqa: PT011
            decode(b" " * DOCUMENT_BYTES_MAX + b"[]")
    with pytest.raises(ValueError):  # noqa: PT011
        decode_copy_answer(b" " * COPY_BYTES_MAX + b"[{}, [], []]")
