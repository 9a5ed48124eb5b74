"""Export of a session: its bytes, made in steps so that a long queue does not stop the event loop."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from xxhash import xxh3_64_intdigest

from fanout.durable.form.session_format import EncodedQueue, encode_session
from fanout.server.session.exported_session import ExportedMessage, ExportedSession
from fanout.server.session.session import Session
from fanout.server.session.session_export import BATCH_MESSAGES, ExportedMessages, exported_message

__all__ = ["SessionExport"]

_SHORT_MESSAGES: Final = 500
"""Largest queue that is encoded with its session at once, in a few milliseconds."""
SHORT_BYTES: Final = 256 * 1024
"""Largest number of bytes, queued and in flight, of a session that shares an answer with others."""


class SessionExport:
    """A session that is exported: its value but for the queue, and the queue as it is now, which is encoded in steps.

    Messages that the session collects meanwhile, or drops as too old, change nothing of it.
    """

    def __init__(
        self,
        session: Session,
        value: ExportedSession,
        *,
        messages: ExportedMessages,
        keep: Callable[[int, bytes], bool] | None,
    ) -> None:
        """Begin.

        Args:
            session: The session.
            value: Its value without the queue.
            messages: Values of messages, with the time.
            keep: Returns whether a queued message is part of it, given its position and its topic; None for all.
        """
        self.value = value
        """Its value, without the queue."""
        self.queue = EncodedQueue()
        """Its queue, as far as it is encoded."""
        self.expired = 0
        """Queued messages that were left out because they have expired."""
        self.data: bytes | None = None
        """Its bytes; None before the last step."""
        self.digest = 0
        """Their digest, once they are there."""
        queue = session.sender.queue
        in_flight = sum(len(one.message.payload) for one in value.in_flight if one.message is not None)
        self.is_long = queue.messages > _SHORT_MESSAGES or queue.bytes + in_flight > SHORT_BYTES
        """True if its bytes take long to make, and to send."""
        self._position = queue.appended_total - queue.messages
        self._entries = list(queue.entries())
        self._replaces_retained = session.sender.replaces_retained
        self._messages = messages
        self._keep = keep

    def steps(self) -> Generator[None, None, None]:
        """Encode it."""
        position, keep, now_ns = self._position, self._keep, self._messages.now_ns
        for batch, start in self._entries:
            waiting = batch.messages
            for first in range(start, len(waiting), BATCH_MESSAGES):
                part: list[ExportedMessage] = []
                for message in waiting[first : first + BATCH_MESSAGES]:
                    position += 1
                    if keep is not None and not keep(position - 1, message[0][0]):
                        continue
                    if 0 < message[0][6] <= now_ns:  # [MQTT-3.3.2-5]
                        self.expired += 1
                        continue
                    exported = exported_message(message, now_ns=now_ns)
                    exported.replaces_retained = self._replaces_retained(message)
                    part.append(exported)
                self.queue.add(part)
                yield
        self._entries = []
        data = encode_session(self.value, queue=self.queue)
        yield
        self.digest = xxh3_64_intdigest(data)
        self.data = data
