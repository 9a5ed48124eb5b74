"""Control topic of a link: markers and heartbeats that the link publishes at the primary and receives back.

Owns the topic, the payloads, whether the primary lets them through, and the lag that they measure.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import Final

from fanout.replica.update import Stamp

__all__ = ["MARKER", "PAYLOAD_BYTES_MAX", "STALL_INTERVALS", "UNDER_WAY_MAX", "ControlChannel", "link_control_topic"]

PAYLOAD_BYTES_MAX = 40
"""Largest payload: two numbers of 64 bits, and a space."""
UNDER_WAY_MAX = 8
"""Number of messages that may be under way; at this number no heartbeat is sent."""
EARLY_UNDER_WAY_MAX = 4
"""Number of messages under way at which those that are sent before a heartbeat is due begin to be rare."""
EARLY_PAUSE_S = 1.0
"""Pause between such messages then."""
STALL_INTERVALS = 3
"""Number of intervals without a message that mean a stall; twice as many mean a lost connection."""
MARKER: Final = re.compile(rb"([0-9]{1,20}) ([0-9]{1,20})")
"""Payload of a message: the process, and the number that it gave the message."""
_PROCESSES_MAX = 16
"""Processes whose messages are remembered."""
_NEVER = float("inf")


def link_control_topic(control_topic: str, *, node_id: str, link: str) -> str:
    """Return the control topic of one link, for a configured root of control topics."""
    return f"{control_topic}/{node_id}/{link}"


class ControlChannel:
    """Control channel of one link.

    Attributes:
        nonce: Number of this process.
        prefix: Prefix of all control topics, those of other nodes included.
        topic: The control topic of this link.
        sentinel_topic: Topic of this link's own sentinel, a retained message (`fanout.link.snapshot.capability_check`).
        own_filter: A Topic Filter with a wildcard that matches the own sentinel only.
        probe_filter: A Topic Filter that is never subscribed; UNSUBSCRIBE for it has no effect but its answer.
        permitted: True if messages come back; None while that is not known in this epoch.
        answered: True if the newest question about that is answered (`CapabilityCheck`).
        refusal: Why the newest message did not, for an operator; empty when it did or that is unknown.
        stamp: Newest stamp of the primary on one of them; None without stamps.
        dropped: Number of heartbeats that the newest message that came back has shown to be dropped.
    """

    def __init__(self, control_topic: str, *, node_id: str, link: str, nonce: int, heartbeat_s: float) -> None:
        """Begin with nothing under way.

        Args:
            control_topic: The configured root of control topics.
            node_id: This node.
            link: This link.
            nonce: A number that differs between processes, to recognise own messages.
            heartbeat_s: Seconds between heartbeats; 0 for none, and then lag is unknown.
        """
        self.prefix = f"{control_topic}/".encode()
        self.topic = link_control_topic(control_topic, node_id=node_id, link=link).encode()
        self.sentinel_topic = self.topic + b"/fence"
        self.own_filter = self.topic + b"/+"
        self.probe_filter = self.topic + b"/probe"
        self.permitted: bool | None = None
        self.answered = False
        self.refusal = ""
        self.stamp: Stamp | None = None
        self.dropped = 0
        self._tries_again = False
        """True if the primary may take the next message although it refused one."""
        self.nonce = nonce
        self._heartbeat_s = heartbeat_s
        self._count = 0
        self._last_sent = -_NEVER
        self._heartbeats_from = -_NEVER
        self._listening_from = -_NEVER
        self._under_way: dict[bytes, float] = {}
        """Payload to when it was sent, monotonic seconds, oldest first."""
        self._returned: tuple[float, float] | None = None
        """When the newest message that came back was sent, and when it came back; monotonic seconds."""
        self._returned_number = 0
        """Number of the newest message that came back."""
        self._heard: dict[int, tuple[int, int]] = {}
        """Process that sent messages to this topic, to the number of its newest, and of the newest own one then."""

    def restore(self, *, permitted: bool | None) -> None:
        """Take over `permitted` of an earlier process."""
        self.permitted = permitted
        self.answered = permitted is not None

    def begin_epoch(self) -> None:
        """Forget the findings of the former epoch."""
        self.permitted = None
        self.answered = False
        self.refusal = ""
        self._tries_again = False
        self.stamp = None
        self._under_way.clear()
        self._returned = None

    def ask_again(self) -> None:
        """Note that a capability check asks again; what is known stays until it is answered."""
        self.answered = self.is_open

    def send(self, now: float) -> bytes:
        """Return the payload of a new message, and note it as under way."""
        self._count += 1
        payload = b"%d %d" % (self.nonce, self._count)
        self._under_way[payload] = now
        self._last_sent = now
        return payload

    @property
    def is_open(self) -> bool:
        """True if a message that is published now should come back."""
        return bool(self.permitted) and not self.refusal

    @property
    def may_be_open(self) -> bool:
        """True if messages may come back, as far as that is known in this epoch."""
        return self.permitted is not False or self._tries_again

    @property
    def returned_sent_s(self) -> float | None:
        """When the newest message that came back in this epoch was sent, monotonic seconds; None for none."""
        return None if self._returned is None else self._returned[0]

    def refuse(self, refusal: str) -> None:
        """Note that the primary does not let messages through in this epoch, and why."""
        self.permitted = False
        self.answered = True
        self.refusal = refusal
        self._tries_again = False
        self._under_way.clear()

    def refuse_message(self, payload: bytes, refusal: str) -> None:
        """Note that the primary refused one message; it may take the next."""
        self.permitted = bool(self.permitted)
        self.answered = True
        self.refusal = refusal
        self._tries_again = True
        self._under_way.pop(payload, None)

    def receive(self, payload: bytes, *, now: float, stamp: Stamp | None = None) -> int | None:
        """Take a message of the control topic.

        Args:
            payload: Its payload.
            now: When it came, monotonic seconds.
            stamp: Its stamp, if it has one.

        Returns:
            Its round trip in nanoseconds; None when it is not under way: a duplicate, or from another process.
        """
        sent = self._under_way.get(payload)
        if sent is None:
            return None
        # Messages of one session come in order [MQTT-4.6.0-6], so an older one that is missing was dropped. One from
        # before heartbeats began was lost with a connection, or in front of sets that were compared since.
        older = list(takewhile(lambda each: each != payload, self._under_way))
        self.dropped = sum(self._under_way.pop(each) > self._heartbeats_from for each in older)
        del self._under_way[payload]
        self.permitted = self.answered = True
        self.refusal = ""
        self.stamp = stamp
        self._returned = (sent, now)
        self._returned_number = int(payload.rpartition(b" ")[2])
        return round((now - sent) * 1e9)

    def hears_twin(self, payload: bytes) -> bool:
        """Note a message of the control topic that is not under way; return whether another process runs that sends it.

        Messages of a former process may wait at the primary, and come in front of what is sent later [MQTT-4.6.0-6].
        So a process runs if it sends one with a higher number after an own message that was sent after its last one.
        """
        found = MARKER.fullmatch(payload) if len(payload) <= PAYLOAD_BYTES_MAX else None
        if found is None or int(found[1]) == self.nonce:
            return False
        process, number = int(found[1]), int(found[2])
        newest, own = self._heard.get(process, (number, self._count))
        runs = number > newest and self._returned_number > own
        if process not in self._heard or number > newest:
            self._heard.pop(process, None)
            self._heard[process] = (number, self._count)
        if len(self._heard) > _PROCESSES_MAX:
            del self._heard[next(iter(self._heard))]
        return runs

    @property
    def may_send(self) -> bool:
        """True if fewer messages are under way than may be."""
        return len(self._under_way) < UNDER_WAY_MAX

    @property
    def has_room_to_spare(self) -> bool:
        """True if a message may be sent before a heartbeat is due.

        The primary may have dropped all that are under way. So room is left for the next heartbeat, which shows that.
        """
        return len(self._under_way) < UNDER_WAY_MAX - 1

    def may_send_early(self, now: float) -> bool:
        """Say whether a message that can wait may be sent before a heartbeat is due: now and then if many stay away."""
        return len(self._under_way) < EARLY_UNDER_WAY_MAX or now - self._last_sent >= EARLY_PAUSE_S

    def heartbeat_due(self, now: float) -> bool:
        """Say whether a heartbeat is due."""
        return now >= self._heartbeat_at() and self.may_send

    def skip_heartbeat(self, now: float) -> None:
        """Skip a heartbeat because nothing can be published now."""
        self._last_sent = now

    def begin_listening(self, now: float) -> None:
        """Note that reading resumes: messages under way were not awaited before."""
        self._listening_from = now

    def is_stalled(self, now: float, *, intervals: int = STALL_INTERVALS) -> bool:
        """Say whether a message has been missing for `intervals` intervals or more."""
        return now >= self._stalled_at(intervals)

    def begin_heartbeats(self, now: float) -> None:
        """Note that heartbeats are sent from now on."""
        self._heartbeats_from = now

    def slept_s(self, now: float) -> float:
        """Return for how long this node itself did not run; 0 unless a heartbeat is overdue by the time of a stall."""
        overdue_s = now - max(self._heartbeat_at(), self._heartbeats_from)
        return overdue_s if overdue_s >= STALL_INTERVALS * self._heartbeat_s else 0.0

    def deadline(self, now: float) -> float:
        """When to ask `heartbeat_due` and `is_stalled` again, monotonic seconds; infinity for never."""
        stalls = (self._stalled_at(STALL_INTERVALS), self._stalled_at(2 * STALL_INTERVALS))
        later = [at for at in stalls if at > now]
        heartbeat_at = self._heartbeat_at() if self.may_send else _NEVER
        return min(heartbeat_at, *later, _NEVER)

    def _heartbeat_at(self) -> float:
        if not ((self.permitted or self._tries_again) and self._heartbeat_s):
            return _NEVER
        return self._last_sent + self._heartbeat_s

    def _stalled_at(self, intervals: int) -> float:
        if not (self.permitted and self._heartbeat_s and self._under_way):
            return _NEVER
        return max(min(self._under_way.values()), self._listening_from) + intervals * self._heartbeat_s

    def round_trip_ns(self) -> int | None:
        """Return the round trip of the newest message that came back; None when none did in this epoch."""
        if self._returned is None:
            return None
        sent, came = self._returned
        return round((came - sent) * 1e9)

    def returned_since(self, sent_s: float) -> bool:
        """Say whether a message came back that was sent at `sent_s`, monotonic seconds, or later."""
        return self._returned is not None and self._returned[0] >= sent_s

    def lag_ns(self, now: float) -> int | None:
        """Return a lower bound of the lag of the replica; None when it is unknown.

        Everything before the newest message that came back is applied. The next heartbeat leaves one interval after
        it; while that one is missing the lag grows, with or without traffic.
        """
        if self._returned is None or not self._heartbeat_s or not self.is_open:
            return None
        sent, came = self._returned
        return round(max(came - sent, now - sent - self._heartbeat_s) * 1e9)

    def current_s(self, now: float) -> float:
        """Return when a live replica was last known to be current: when the newest heartbeat that came back left."""
        return now if self._returned is None or not (self._heartbeat_s and self.is_open) else self._returned[0]

    def is_late(self, now: float) -> bool:
        """Say whether the lag exceeds two intervals or is unknown."""
        lag_ns = self.lag_ns(now)
        return lag_ns is None or lag_ns > 2e9 * self._heartbeat_s

    def age_s(self, now: float) -> float | None:
        """Return the seconds since a message came back; None when none did in this epoch."""
        return None if self._returned is None else now - self._returned[1]
