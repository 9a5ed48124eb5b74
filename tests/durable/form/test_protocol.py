"""What members of a pool say to each other, byte by byte, as it is in one version of their protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from fanout.access.identity import Identity, Means
from fanout.chain.cut import Cut, RetainedSet
from fanout.durable.form.session_copy import CopiedMessage, SessionCopy, encode_copy, encode_places
from fanout.durable.form.session_format import encode_session
from fanout.durable.ownership import copy_messages, move_messages
from fanout.durable.ownership.copy_messages import CopyAnswer, CopyRequest, CopyRow, InheritRequest, PlacesRow, Row
from fanout.durable.ownership.copy_rules import CopyVersion, Right
from fanout.durable.ownership.epochs import Epoch
from fanout.durable.ownership.move_messages import (
    ClaimAnswer,
    ClaimQuestion,
    Fetched,
    FetchQuestion,
    Holding,
    Piece,
    PieceQuestion,
    SessionQuestion,
    TakeQuestion,
)
from fanout.durable.ownership.ownership import Answer, Owner, Reply
from fanout.mqtt.delivery import SendState
from fanout.mqtt.packets import Will
from fanout.pool.member_facts import PROTOCOL, MemberAnswer, MemberFacts, decode_answer, encode_answer
from fanout.replica.recent import Place
from fanout.server.messages.encoding import WireVariant
from fanout.server.routing.subscribers import SubscriptionOptions
from fanout.server.session.exported_session import (
    ExportedInFlight,
    ExportedMessage,
    ExportedRetained,
    ExportedSession,
    ExportedSubscription,
)
from fanout.server.session.wills import will_of

PINNED: Final = Path(__file__).with_name(f"protocol-{PROTOCOL}.json")

EPOCH: Final = Epoch(5, "edge-1")
MESSAGE: Final = ExportedMessage(
    topic=b"a/b",
    payload=b"x",
    properties=b"",
    update_qos=2,
    retained=True,
    expiry_left_ns=9,
    digest=1,
    qos=2,
    retain=False,
)
SESSION: Final = ExportedSession(
    client_id="sensor",
    owner=Identity(client_id="sensor", user="alice", means=Means.PASSWORD),
    owner_since=3,
    wire=WireVariant(5),
    expiry_left_ms=60_000,
    subscriptions=(ExportedSubscription(b"a/#", SubscriptionOptions(2)),),
    in_flight=(ExportedInFlight(1, SendState.AWAIT_PUBREC, MESSAGE),),
    queue=(MESSAGE,),
    retained=(ExportedRetained(b"a/#", (b"a/c",)),),
    unreleased=frozenset({7}),
    will=will_of(Will(b"gone", b"sensor")),
    will_left_ms=5_000,
)
PLACES: Final = {"plant": Place("edge-2", "123 4", 5, 6)}
COPIED: Final = CopiedMessage(
    0, 3, SendState.AWAIT_PUBREC, "plant", Place("edge-2", "123 4", 5, 0), 8, retain=True, identifiers=(9,)
)
COPY: Final = SessionCopy(replace(SESSION, in_flight=()), True, True, PLACES, (COPIED,))
QUESTION: Final = SessionQuestion("c", EPOCH)

MEMBER: Final = "answer to GET /pool/member"
ABOUT_MEMBER: Final = MemberAnswer(
    MemberFacts(
        node="edge-2",
        instance="00ff" * 4,
        version="0.1.0",
        config_digest="ab" * 8,
        state="ready",
        topics=1,
        sessions=2,
        lag_s=0.25,
        moved_in=3,
        moved_out=4,
        client_address="edge-2:1883",
        http_port=8080,
        http_tls=True,
        keeps_copies=True,
        sessions_copied=5,
        copies_held=6,
        copies_late_s=0.5,
        history_s=0.75,
        history_used=0.125,
    ),
    {"plant": Cut("123 4", (RetainedSet(2, 2**63), None))},
    copies_are_right=True,
    epoch_counter=7,
)


def said() -> dict[str, bytes]:
    """Return each message, with a value for each of its fields."""
    moves, copies = move_messages, copy_messages
    version = CopyVersion(EPOCH, 7)
    rows: list[Row] = [CopyRow("c", version, b"copy"), CopyRow("d", version, None), PlacesRow(b"places", ("c",), 8)]
    holding = Holding(
        Answer(Reply.HELD, EPOCH), (ExportedSubscription(b"a/#", SubscriptionOptions(1, True, False, 2)),), 3
    )
    return {
        "session": encode_session(SESSION),
        "copy": encode_copy(COPY),
        "places": encode_places(PLACES),
        "TAKE, OFFER": moves.TAKE.encode([TakeQuestion("c", EPOCH, "u", True, False, True)]),
        "answer to TAKE": moves.TAKE.encode_answers([holding]),
        "FETCH": moves.FETCH.encode([FetchQuestion("c", EPOCH, {"plant": "m"})]),
        "answer to FETCH": moves.FETCH.encode_answers([Fetched("inexact", b"session", encode_places(PLACES))]),
        "PIECE": moves.PIECE.encode([PieceQuestion("c", EPOCH, 4)]),
        "answer to PIECE": moves.PIECE.encode_answers([Piece(True, 5, 6, b"session")]),
        "COMMIT": moves.COMMIT.encode([QUESTION]),
        "answer to COMMIT, OFFER": moves.COMMIT.encode_answers([True, False]),
        "CLAIM": moves.CLAIM.encode([ClaimQuestion("c", EPOCH, Owner("u", True, False, 3))]),
        "answer to CLAIM": moves.CLAIM.encode_answers([ClaimAnswer(EPOCH, True), None]),
        "COPY": copies.encode_copy_request(CopyRequest("i", rows)),
        "answer to COPY": copies.encode_copy_answer(CopyAnswer({"c": EPOCH}, ("d",), ("e",), ("f",))),
        "INHERIT": copies.encode_inherit_request(InheritRequest("edge-1", "i", (("c", version),))),
        "answer to INHERIT": copies.encode_inherit_answer([Right.YES, Right.NEWER]),
        MEMBER: encode_answer(ABOUT_MEMBER),
    }


def test_a_protocol_says_what_it_said(tmp_path: Path) -> None:
    """Members of the same version understand each other; `tests/acceptance/test_upgrade.py` has one of another."""
    now = {name: message.hex() for name, message in said().items()}
    written = tmp_path / PINNED.name
    written.write_text(json.dumps(now, indent=1) + "\n")
    assert PINNED.exists(), f"a new version of the protocol: copy {written} to {PINNED.parent}"
    then = json.loads(PINNED.read_text())
    changed = [name for name in {**now, **then} if name != MEMBER and now.get(name) != then.get(name)]
    assert changed == [], "raise PROTOCOL in fanout/pool/member_facts.py: its members would misread these messages"


def test_the_document_about_a_member_keeps_its_keys() -> None:
    """Keys may be added to it; those of this version of the protocol stay as they are, and a reader wants no others."""
    then = json.loads(bytes.fromhex(json.loads(PINNED.read_text())[MEMBER]))
    now = json.loads(encode_answer(ABOUT_MEMBER))
    assert {key: now.get(key) for key in then} == then
    assert decode_answer(json.dumps(then).encode()) == ABOUT_MEMBER
