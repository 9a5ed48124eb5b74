"""Refused messages of clients: counted, and logged with their topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from fanout.mqtt.decoder import PublishRow
from fanout.mqtt.reason_codes import ReasonCode
from fanout.server.base.counters import Counters, DropReason
from fanout.server.base.ports import Logger, PublishVerdict

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
        self, rows: Sequence[PublishRow], verdicts: Sequence[PublishVerdict], *, client_id: str, user: str | None
    ) -> None:
        """Note each refusal among `verdicts` on `rows`: at once, or when a pending verdict comes.

        Args:
            rows: Messages of one client.
            verdicts: One for each.
            client_id: Client Identifier of the publisher.
            user: Its user; None without access control.
        """
        former: object = None
        for row, verdict in zip(rows, verdicts, strict=True):
            if isinstance(verdict, int):
                if verdict >= 0x80:
                    self._note(row, verdict, client_id=client_id, user=user)
            elif verdict is not former:  # values on their way to the disk share one, which is no refusal
                former = verdict
                future = cast("asyncio.Future[ReasonCode]", verdict)
                future.add_done_callback(self._later(row, client_id=client_id, user=user))

    def _later(
        self, row: PublishRow, *, client_id: str, user: str | None
    ) -> Callable[[asyncio.Future[ReasonCode]], None]:
        def came(verdict: asyncio.Future[ReasonCode]) -> None:
            if not verdict.cancelled() and verdict.result() >= 0x80:
                self._note(row, verdict.result(), client_id=client_id, user=user)

        return came

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
