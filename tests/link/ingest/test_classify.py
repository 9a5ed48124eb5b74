"""Why rows came."""

from __future__ import annotations

import pytest

from fanout.link.ingest.classify import split_phases
from fanout.link.model.states import LinkState
from fanout.link.snapshot.stage import Stage
from fanout.mqtt.decoder import PublishRow
from fanout.replica.update import Phase

COPY, MESSAGE, QOS1, QOS1_RETAIN, QOS1_AGAIN = 1, 0, 2, 3, 10


class Copies(Stage):
    """A stage whose copies are over when told."""

    def __init__(self, *, over: bool) -> None:
        """Begin with copies that are over or not."""
        self.over = over

    @property
    def copies_complete(self) -> bool:
        """Whether they are."""
        return self.over


def rows(*flags: int) -> list[PublishRow]:
    """Return rows with these flags."""
    return [(b"plant/%d" % number, b"1", each, 0, b"", None, 0) for number, each in enumerate(flags)]


def phases(
    *flags: int,
    state: LinkState,
    stage: Stage | None = None,
    auditing: bool = False,
    copies_late: bool = False,
    continues: bool = True,
) -> list[tuple[Phase | None, list[int]]]:
    """Return the phases of rows with these flags, each with the flags of its rows, which must be all in order."""
    came = rows(*flags)
    parts = list(
        split_phases(
            came, state=state, stage=stage, auditing=auditing, copies_late=copies_late, continues=lambda _: continues
        )
    )
    assert [row for _, part in parts for row in part] == came
    return [(phase, [row[2] for row in part]) for phase, part in parts]


@pytest.mark.parametrize("state", [LinkState.LIVE, LinkState.STALLED])
def test_a_live_link_gets_live_rows_only(state: LinkState) -> None:
    """Whatever their marks are; the rows are not copied."""
    came = rows(COPY, QOS1)
    parts = split_phases(came, state=state, stage=None, auditing=False, copies_late=False, continues=lambda _: True)
    assert list(parts) == [(Phase.LIVE, came)]


def test_copies_may_come_late() -> None:
    """Behind an audit that was given up, rows with the marks of a copy are taken for one."""
    assert phases(COPY, MESSAGE, QOS1_RETAIN, COPY, state=LinkState.LIVE, copies_late=True) == [
        (Phase.AUDIT, [COPY]),
        (Phase.LIVE, [MESSAGE, QOS1_RETAIN]),
        (Phase.AUDIT, [COPY]),
    ]


def test_in_an_audit_the_replica_tells_copies_apart() -> None:
    """What has a higher QoS is none."""
    assert phases(COPY, MESSAGE, QOS1_RETAIN, COPY, state=LinkState.LIVE, auditing=True) == [
        (None, [COPY, MESSAGE]),
        (Phase.LIVE, [QOS1_RETAIN]),
        (None, [COPY]),
    ]


def test_what_a_resumed_session_sends_again_is_no_news() -> None:
    """Nor are copies that were asked for on the former connection."""
    assert phases(QOS1_AGAIN, COPY, QOS1, MESSAGE, state=LinkState.RESUMING) == [
        (Phase.AUDIT, [QOS1_AGAIN, COPY]),
        (Phase.LIVE, [QOS1, MESSAGE]),
    ]


@pytest.mark.parametrize("stage", [None, Stage(), Copies(over=False)])
def test_a_verification_takes_qos_0_for_copies(stage: Stage | None) -> None:
    """As long as they may come."""
    assert phases(COPY, QOS1, MESSAGE, state=LinkState.VERIFYING, stage=stage) == [
        (Phase.AUDIT, [COPY]),
        (Phase.LIVE, [QOS1]),
        (Phase.AUDIT, [MESSAGE]),
    ]


def test_what_an_older_session_had_queued_may_be_here() -> None:
    """So no value that is held is delivered again."""
    assert phases(QOS1, MESSAGE, state=LinkState.RESUMING, continues=False) == [(Phase.AUDIT, [QOS1, MESSAGE])]


def test_a_verification_looks_again_for_each_part() -> None:
    """What a part brings can end the copies: what follows is live, in the same read too."""
    stage = Copies(over=False)
    parts = split_phases(
        rows(COPY, QOS1, COPY),
        state=LinkState.VERIFYING,
        stage=stage,
        auditing=False,
        copies_late=False,
        continues=lambda _: True,
    )
    assert next(parts)[0] is Phase.AUDIT
    stage.over = True
    assert [phase for phase, _ in parts] == [Phase.LIVE, Phase.LIVE]


@pytest.mark.parametrize("state", [LinkState.SNAPSHOT, LinkState.PROVING])
def test_everything_belongs_to_a_snapshot_until_it_is_proved(state: LinkState) -> None:
    """Live updates that come between its copies too."""
    assert phases(COPY, QOS1, state=state) == [(Phase.SNAPSHOT, [COPY, QOS1])]
