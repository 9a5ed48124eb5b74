"""Why rows came: live, in a snapshot, or as copies beside live updates (core).

Owns this one judgement, from the marks of a PUBLISH and from what the session is doing; where the marks do not tell,
the replica does (`fanout.replica.store.Replica.split_pass`). It must not know what is done with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from fanout.link.model.states import LinkState
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Phase

__all__ = ["PassUnderWay", "split_phases"]


class PassUnderWay(Protocol):
    """What goes on besides, as far as it matters for why rows come; a stage of the session is it."""

    @property
    def copies_over(self) -> bool:
        """Whether every copy of a retained set that was asked for has come, so that what follows is live."""


def split_phases(
    rows: Sequence[PublishRow],
    *,
    state: LinkState,
    stage: PassUnderWay | None,
    auditing: bool,
    copies_late: bool,
    goes_on: Callable[[PublishRow], bool],
) -> Iterator[tuple[Phase | None, Sequence[PublishRow]]]:
    """Split rows, in order, by why they came; None is for rows of which the replica tells whether they are copies.

    Args:
        rows: In the order of arrival.
        state: Where the link is.
        stage: What goes on besides; asked anew for each part, for the part in front of it may end its copies.
        auditing: Whether an audit of the live link is under way.
        copies_late: Whether copies for an audit that was given up may still come.
        goes_on: Whether, by a row, the session that was resumed is the one that was left, not an older copy; asked of
            each row in order while the link is resuming.
    """
    if auditing:
        # The copies come at QoS 0; which of these rows they are is for the replica to say.
        for qos, part in groupby(rows, lambda row: row[2] & 6):
            yield Phase.LIVE if qos else None, list(part)
    elif state in (LinkState.LIVE, LinkState.STALLED):
        if not copies_late:
            yield Phase.LIVE, rows
            return
        for copy, part in groupby(rows, _may_be_copy):
            yield Phase.AUDIT if copy else Phase.LIVE, list(part)
    elif state is LinkState.RESUMING:
        # What is sent again may have been applied before the connection was lost: not delivered twice. Nor are
        # copies that a SUBSCRIBE of the former connection asked for; Mosquitto keeps them in the session. And a primary
        # that began with an older store may have queued what has come since in another session, as this process may
        # not know what an earlier one took.
        for again, part in groupby(rows, lambda row: not goes_on(row) or row[2] & 8 > 0 or _may_be_copy(row)):
            yield Phase.AUDIT if again else Phase.LIVE, list(part)
    elif state is LinkState.VERIFYING:
        # The copies come at QoS 0; what has a higher QoS, or comes behind the last copy, is live.
        for qos, part in groupby(rows, lambda row: row[2] & 6):
            live = qos or (stage is not None and stage.copies_over)
            yield Phase.LIVE if live else Phase.AUDIT, list(part)
    else:
        yield Phase.SNAPSHOT, rows


def _may_be_copy(row: PublishRow) -> bool:
    """Say whether a row has the marks of a retained copy: QoS 0 and RETAIN; a live update may have them too."""
    return row[2] & 7 == 1
