"""What a worker's clients publish, on its way to the hub and back."""

from __future__ import annotations

import asyncio

import pytest

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.workers.messages import Published, PublishVerdicts
from fanout.workers.remote_ingress import ROWS_HIGH, ROWS_LOW, RemoteIngress


class Case:
    """An ingress, with what it did."""

    def __init__(self) -> None:
        self.sent: list[Published] = []
        self.paused: list[bool] = []
        self.refused = 0
        self.ingress = RemoteIngress(send=self.sent.append, pause=self.paused.append, count_refused=self.count)

    def count(self, messages: int) -> None:
        self.refused += messages

    def publish(self, *, qos: int, count: int = 1) -> list[object]:
        """Publish so many messages."""
        row: PublishRow = (b"a", b"x", qos << 1, 7 if qos else 0, b"", None, 0)
        return list(self.ingress.publish("c", [row] * count, 5))


@pytest.fixture
async def case() -> Case:
    """Return an ingress with nothing under way."""
    return Case()


async def test_verdicts_come_with_the_answer(case: Case) -> None:
    """Each message has that of the hub; a refusal at QoS 0, which nobody else hears of, is counted."""
    (first,), (second,) = case.publish(qos=1), case.publish(qos=2)
    assert case.publish(qos=0) == [ReasonCode.SUCCESS]
    assert [(one.request, one.client_id, one.now_ns) for one in case.sent] == [(1, "c", 5), (2, "c", 5), (3, "c", 5)]
    assert case.ingress.waiting == 3
    case.ingress.answer(PublishVerdicts(1, (ReasonCode.SUCCESS,)))
    case.ingress.answer(PublishVerdicts(2, (ReasonCode.NOT_AUTHORIZED,)))
    case.ingress.answer(PublishVerdicts(3, (ReasonCode.NOT_AUTHORIZED,)))
    assert isinstance(first, asyncio.Future)
    assert isinstance(second, asyncio.Future)
    assert (first.result(), second.result()) == (ReasonCode.SUCCESS, ReasonCode.NOT_AUTHORIZED)
    assert (case.ingress.waiting, case.refused) == (0, 1)


async def test_publishers_wait_above_the_marks(case: Case) -> None:
    """Above the number of messages, or while too much is unsent, and go on when neither is so."""
    case.publish(qos=0, count=ROWS_HIGH - ROWS_LOW + 2)
    assert case.paused == []
    case.publish(qos=0, count=ROWS_LOW)
    assert case.paused == [True]
    case.ingress.note_backpressure(True)
    case.ingress.answer(PublishVerdicts(1, (ReasonCode.SUCCESS,) * (ROWS_HIGH - ROWS_LOW + 2)))
    assert case.paused == [True]
    case.ingress.note_backpressure(False)
    assert case.paused == [True, False]


async def test_who_waits_is_told_when_the_hub_is_gone(case: Case) -> None:
    """The messages may be accepted when they are sent again."""
    (verdict,) = case.publish(qos=1)
    case.ingress.give_up()
    assert isinstance(verdict, asyncio.Future)
    assert verdict.result() is ReasonCode.SERVER_UNAVAILABLE
    assert case.ingress.waiting == 0
