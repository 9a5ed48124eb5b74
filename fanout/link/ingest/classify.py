"""Classification of PUBLISH rows: live, part of a snapshot, or copies beside live updates.

It follows from the flags of a PUBLISH and from the state of the session. If these do not tell, the replica does
(`fanout.replica.store.Replica.split_pass`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from fanout.link.ingest.rows import COPY_MASK, DUP, FLAGS, QOS, RETAIN
from fanout.link.model.states import LinkState
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Phase

__all__ = ["PassUnderWay", "split_phases"]


class PassUnderWay(Protocol):
    """The stage under way, as far as classification needs it."""

    @property
    def copies_complete(self) -> bool:
        """True if every copy of the requested retained set has come, so that further rows are live."""


def split_phases(
    rows: Sequence[PublishRow],
    *,
    state: LinkState,
    stage: PassUnderWay | None,
    auditing: bool,
    copies_late: bool,
    continues: Callable[[PublishRow], bool],
) -> Iterator[tuple[Phase | None, Sequence[PublishRow]]]:
    """Split rows, in order, by phase; None stands for rows that only the replica can tell from copies.

    Args:
        rows: In the order of arrival.
        state: State of the link.
        stage: Stage under way; asked anew for each part, because the part before may complete its copies.
        auditing: True if an audit of the live link is under way.
        copies_late: True if copies for an audit that was given up may still come; then the next one has not begun.
        continues: Says by a row whether the resumed session is the one that was left, not an older copy; called with
            each row in order while the link is resuming.
    """
    if auditing and not copies_late:
        # Copies come at QoS 0; the replica tells which of these rows they are.
        for qos, part in groupby(rows, lambda row: row[FLAGS] & QOS):
            yield Phase.LIVE if qos else None, list(part)
    elif state in (LinkState.LIVE, LinkState.STALLED):
        if not copies_late:
            yield Phase.LIVE, rows
            return
        for copy, part in groupby(rows, _may_be_copy):
            yield Phase.AUDIT if copy else Phase.LIVE, list(part)
    elif state is LinkState.RESUMING:
        # Messages sent again may have been applied before the connection was lost; they are not delivered twice. Nor
        # are copies that the former connection requested; Mosquitto keeps them in the session. And a primary that began
        # with an older store may have queued messages that came since in another session; likewise this process may not
        # know which messages an earlier one took.
        for again, part in groupby(rows, lambda row: not continues(row) or row[FLAGS] & DUP > 0 or _may_be_copy(row)):
            yield Phase.AUDIT if again else Phase.LIVE, list(part)
    elif state is LinkState.VERIFYING:
        # Copies come at QoS 0; rows at a higher QoS, or after the last copy, are live.
        for qos, part in groupby(rows, lambda row: row[FLAGS] & QOS):
            live = qos or (stage is not None and stage.copies_complete)
            yield Phase.LIVE if live else Phase.AUDIT, list(part)
    else:
        yield Phase.SNAPSHOT, rows


def _may_be_copy(row: PublishRow) -> bool:
    """Say whether a row looks like a retained copy: QoS 0 and RETAIN. A live update may look so, too."""
    return row[FLAGS] & COPY_MASK == RETAIN
