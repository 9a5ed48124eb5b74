"""The link's own messages, published at the primary and received back: markers and heartbeats (core).

Owns their topic and content, whether the primary lets them through, and the lag they measure. It must not
know how they are published or what they prove (`fanout.link.snapshot.set_proof`).
"""

from __future__ import annotations

from itertools import takewhile

from fanout.replica.update import Stamp

__all__ = ["PAYLOAD_BYTES_MAX", "STALL_INTERVALS", "UNDER_WAY_MAX", "ControlChannel"]

PAYLOAD_BYTES_MAX = 40
"""Of a message: two numbers of 64 bits, and a space."""
UNDER_WAY_MAX = 8
"""How many messages may be under way; while so many are, no heartbeat is added."""
STALL_INTERVALS = 3
"""A message that is away for so many intervals means a stall; for twice as many, a lost connection."""
_NEVER = float("inf")


class ControlChannel:
    """Messages to oneself through the primary.

    Attributes:
        prefix: What all control topics begin with, those of other nodes included.
        topic: The control topic of this link.
        fence_topic: Where this link may keep a retained message (`fanout.link.snapshot.capability_check`).
        own_filter: A Topic Filter with a wildcard that matches the fence, and nothing that anyone publishes to besides.
        probe_filter: A Topic Filter that is never subscribed; UNSUBSCRIBE with it does nothing but be answered.
        permitted: Whether messages come back; None while that is not known in this epoch.
        refusal: Why the newest message did not, for a person; empty when it did, and when that is not known.
        stamp: The newest stamp that the primary put on one of them; None without stamps.
        dropped: How many heartbeats the newest message that came back has shown to be dropped on the way.
    """

    def __init__(self, control_topic: str, *, node_id: str, link: str, nonce: int, heartbeat_s: float) -> None:
        """Prepare a channel.

        Args:
            control_topic: The configured root of control topics.
            node_id: This node.
            link: This link.
            nonce: Differs between processes, so that a message of another one is not taken for ours.
            heartbeat_s: Seconds between heartbeats; 0 for none, and then lag is not known.
        """
        self.prefix = f"{control_topic}/".encode()
        self.topic = f"{control_topic}/{node_id}/{link}".encode()
        self.fence_topic = self.topic + b"/fence"
        self.own_filter = self.topic + b"/+"
        self.probe_filter = self.topic + b"/probe"
        self.permitted: bool | None = None
        self.refusal = ""
        self.stamp: Stamp | None = None
        self.dropped = 0
        self._tries_again = False
        """Whether what was refused may be taken later."""
        self._nonce = nonce
        self._heartbeat_s = heartbeat_s
        self._count = 0
        self._last_sent = -_NEVER
        self._heartbeats_from = -_NEVER
        self._listening_from = -_NEVER
        self._under_way: dict[bytes, float] = {}
        """Payload to when it was sent, monotonic seconds, oldest first."""
        self._returned: tuple[float, float] | None = None
        """When the newest message that came back was sent, and when it came; monotonic seconds."""

    def begin_epoch(self) -> None:
        """Forget what was learnt in the former epoch."""
        self.permitted = None
        self.refusal = ""
        self._tries_again = False
        self.stamp = None
        self._under_way.clear()
        self._returned = None

    def send(self, now: float) -> bytes:
        """Return the payload of a new message, which is under way from now on."""
        self._count += 1
        payload = b"%d %d" % (self._nonce, self._count)
        self._under_way[payload] = now
        self._last_sent = now
        return payload

    @property
    def is_open(self) -> bool:
        """Whether a message that is published now should come back."""
        return bool(self.permitted) and not self.refusal

    def refuse(self, refusal: str) -> None:
        """Note that the primary does not let messages through in this epoch, and why."""
        self.permitted = False
        self.refusal = refusal
        self._tries_again = False
        self._under_way.clear()

    def refuse_message(self, payload: bytes, refusal: str) -> None:
        """Note that the primary did not take one message; it may take the next."""
        self.permitted = bool(self.permitted)
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
            Its round trip in nanoseconds; None when it is not one that is under way: a duplicate, or from
            another process.
        """
        sent = self._under_way.get(payload)
        if sent is None:
            return None
        # Messages of one session come in order [MQTT-4.6.0-6]; an older one that is missing was dropped. What was under
        # way before heartbeats began was lost with a connection, or in front of sets that were compared since.
        older = list(takewhile(lambda each: each != payload, self._under_way))
        self.dropped = sum(self._under_way.pop(each) > self._heartbeats_from for each in older)
        del self._under_way[payload]
        self.permitted = True
        self.refusal = ""
        self.stamp = stamp
        self._returned = (sent, now)
        return round((now - sent) * 1e9)

    def heartbeat_due(self, now: float) -> bool:
        """Say whether it is time for a heartbeat."""
        return now >= self._heartbeat_at() and len(self._under_way) < UNDER_WAY_MAX

    def skip_heartbeat(self, now: float) -> None:
        """Leave a heartbeat out: nothing can be published now."""
        self._last_sent = now

    def begin_listening(self, now: float) -> None:
        """Note that what comes back is read again from now on: what is away was not awaited before."""
        self._listening_from = now

    def is_stalled(self, now: float, *, intervals: int = STALL_INTERVALS) -> bool:
        """Say whether a message is away for `intervals` intervals or more."""
        return now >= self._stalled_at(intervals)

    def begin_heartbeats(self, now: float) -> None:
        """Note that heartbeats are sent from now on, after none was wanted."""
        self._heartbeats_from = now

    def has_slept(self, now: float) -> bool:
        """Say whether the next heartbeat is overdue by as much as means a stall: the node itself did not run."""
        return now >= max(self._heartbeat_at(), self._heartbeats_from) + STALL_INTERVALS * self._heartbeat_s

    def deadline(self, now: float) -> float:
        """When to ask `heartbeat_due` and `is_stalled` again, monotonic seconds; infinity for never."""
        stalls = (self._stalled_at(STALL_INTERVALS), self._stalled_at(2 * STALL_INTERVALS))
        later = [at for at in stalls if at > now]
        heartbeat_at = self._heartbeat_at() if len(self._under_way) < UNDER_WAY_MAX else _NEVER
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
        """Return how long the newest message that came back took; None when none did in this epoch."""
        if self._returned is None:
            return None
        sent, came = self._returned
        return round((came - sent) * 1e9)

    def lag_ns(self, now: float) -> int | None:
        """Return how far behind the replica is at least; None when that is not known.

        Everything before the newest message that came back is applied. The next heartbeat leaves one interval
        after it, so without it the lag grows by itself, with or without traffic.
        """
        if self._returned is None or not self._heartbeat_s or not self.is_open:
            return None
        sent, came = self._returned
        return round(max(came - sent, now - sent - self._heartbeat_s) * 1e9)

    def is_late(self, now: float) -> bool:
        """Say whether the replica is behind by more than two intervals, or that is not known."""
        lag_ns = self.lag_ns(now)
        return lag_ns is None or lag_ns > 2e9 * self._heartbeat_s

    def age_s(self, now: float) -> float | None:
        """Return the time since a message came back last, in seconds; None when none did in this epoch."""
        return None if self._returned is None else now - self._returned[1]
