"""Refused messages of clients: counted, and logged with their topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.counters import Counters, DropReason
from fanout.server.base.ports import Accepted, Logger, PublishVerdict

if TYPE_CHECKING:
    import asyncio

__all__ = ["NOT_NOW", "Refusals"]

NOT_NOW: Final[Mapping[int, ReasonCode]] = {
    ReasonCode.SERVER_UNAVAILABLE: ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
    ReasonCode.SERVER_BUSY: ReasonCode.QUOTA_EXCEEDED,
}
"""Verdicts on messages that may be accepted when they are sent again, to the Reason Codes that PUBACK may carry."""
_TOPIC_CHARACTERS_MAX: Final = 200


class Refusals:
    """Counter and log of the messages that one server refuses."""

    def __init__(self, counters: Counters, logger: Logger) -> None:
        self._counters = counters
        self._logger = logger

    def watch(
        self,
        row: PublishRow,
        verdict: PublishVerdict,
        *,
        client_id: str,
        user: str | None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Note a refusal: at once, or when a pending verdict comes.

        Args:
            row: The message.
            verdict: The verdict on it.
            client_id: Client Identifier of the publisher.
            user: Its user; None without access control.
            then: Called when a pending verdict has come; None for nothing to do.
        """
        if isinstance(verdict, int):
            if verdict >= 0x80:
                self._note(row, verdict, client_id=client_id, user=user)
        elif then is not None or not isinstance(verdict, Accepted):
            cast("asyncio.Future[ReasonCode]", verdict).add_done_callback(
                partial(self._came, row, client_id=client_id, user=user, then=then)
            )

    def _came(
        self,
        row: PublishRow,
        verdict: asyncio.Future[ReasonCode],
        *,
        client_id: str,
        user: str | None,
        then: Callable[[], None] | None,
    ) -> None:
        if not verdict.cancelled() and verdict.result() >= 0x80:
            self._note(row, verdict.result(), client_id=client_id, user=user)
        if then is not None:
            then()

    def _note(self, row: PublishRow, reason_code: ReasonCode, *, client_id: str, user: str | None) -> None:
        self._counters.dropped[DropReason.REFUSED] += 1
        told = NOT_NOW.get(reason_code, reason_code)
        self._logger.warning(
            "publish_refused",
            client_id=client_id,
            topic=row[0].decode(errors="replace")[:_TOPIC_CHARACTERS_MAX],
            qos=row[2] >> 1 & 3,
            reason=f"{told.text} (0x{told:02X})",
            **({} if user is None else {"user": user}),
        )
