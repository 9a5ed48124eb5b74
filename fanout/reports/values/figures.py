"""The figures of a report as values: counts and shares that a selector, a node or a distribution has.

A number that is not known is null, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Self, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict

from fanout.reports.read.scope import NEVER_US

__all__ = [
    "AtLink",
    "AtSelector",
    "Cumulative",
    "FinalFigures",
    "LagFigures",
    "Listed",
    "MissingCauses",
    "UpdateFigures",
    "Value",
    "covered_from",
    "goes_on",
    "percent",
    "time_of",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CHANCE_MAX: Final = 0.01
"""Greatest probability that a loss which seems to have ended goes on."""
_MISSING_MIN: Final = 3
"""With fewer missing updates nothing says how often one is lost."""
_LAST: Final = datetime.max.replace(tzinfo=UTC)


def time_of(unix_us: int) -> datetime:
    """Return a time from microseconds of Unix time; the last moment of the year 9999 for what is later."""
    try:
        return _EPOCH + timedelta(microseconds=unix_us)
    except OverflowError:
        return _LAST


def covered_from(covered_from_us: int) -> datetime | None:
    """Return the begin of a covered span, or None when it never began."""
    return None if covered_from_us >= NEVER_US else time_of(covered_from_us)


def percent(part: int, whole: int) -> float | None:
    """Return a share in per cent, or None of nothing."""
    return 100 * part / whole if whole else None


class Value(BaseModel):
    """A frozen value that goes into the JSON; its docstrings are the descriptions in the schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,  # every key is written, that of a default too
    )

    @classmethod
    def of(cls, row: Mapping[str, Any], **others: Any) -> Self:
        """Return the value that a row of a query holds: each field is the column of its name.

        The field `x` may also be the time of the column `x_us`, and `x_s` the length of it.

        Args:
            row: Values by column; those that are no field are left out.
            others: Fields that are no column, or not of that value.
        """
        found: dict[str, Any] = {}
        for name in cls.model_fields.keys() - others.keys():
            if name in row:
                found[name] = row[name]
            elif (column := f"{name}_us") in row:
                found[name] = None if row[column] is None else time_of(row[column])
            elif (column := f"{name.removesuffix('_s')}_us") in row:
                found[name] = None if row[column] is None else row[column] / 1e6
        return cls(**found, **others)


class AtLink(Value):
    """A value of one link."""

    node: str
    link: str


class AtSelector(AtLink):
    """A value of one selector of a link."""

    filter: str


def goes_on(missing: int, *, within: int, after: int) -> bool | None:
    """Return whether a loss had not ended; None where the updates that came after it show neither.

    A share p of the updates expected from its first to its last missing one is missing. If a loss went on, `after`
    updates would all come with the probability (1 - p)**after. Below 1 per cent the loss has ended. It goes on where
    several are missing, and no more came after the last than between two of them.

    Args:
        missing: Updates that are missing.
        within: Updates that were expected from the first of them to the last; of each is known whether it came.
        after: Updates that came later.
    """
    came_share = max(0, within - missing) / max(within, 1)
    if came_share**after <= _CHANCE_MAX:
        return False
    return True if missing >= _MISSING_MIN and after * missing <= within else None


Item = TypeVar("Item")


class Listed(Value, Generic[Item]):
    """The first of many, with how many there are."""

    # Its fields have none, and looking for them in the source again for each kind of item takes long.
    model_config = ConfigDict(use_attribute_docstrings=False)

    total: int
    listed: tuple[Item, ...]


class MissingCauses(Value):
    """Missing updates by what the link was doing when they were published, as its log says; together all of them."""

    restart: int = 0
    """Its node was down, or had not held everything again yet."""
    new_epoch: int = 0
    """It was away, and the session was gone: the snapshot after it brings the newest value of each topic only."""
    resumed: int = 0
    """It was away, or stalled, and its session went on: the primary had not kept everything for it."""
    away: int = 0
    """It was away, and not live again before the end of its log."""
    audit: int = 0
    """It was live, and the next audit found that the primary had dropped something."""
    upstream: int = 0
    """It was live, and for a node above it one of these holds."""
    skipped: int = 0
    """It was live, and its log says that it skipped messages of the topic then, since it could not replicate them."""
    selector: int = 0
    """It was live, and its selector leaves such messages out: by content, RETAIN or size."""
    max_age: int = 0
    """It was live, and asks its primary for a bound on the age of values, which leaves older ones out."""
    hidden: int = 0
    """It was live, and nothing of a whole branch of topics came any more while others came: its user may not read
    it."""
    live: int = 0
    """It was live, and nothing in its log says why."""


class UpdateFigures(Value):
    """Updates one by one. expected = applied + reobtained + conflated + missing + unknown."""

    expected: int
    """Distinct updates of the reference that the selector takes, in the covered span, settled."""
    applied: int
    """Those that the node logged as updates."""
    reobtained: int
    """Those that it did not get as updates, but the very value came back in a snapshot or audit."""
    conflated: int
    """Those that the node folded into a newer one on purpose."""
    missing: int
    """Those that it did not get, though it could log."""
    unknown: int
    """Those that its log lacks in a gap of the log: lost by the log or by the node, nobody knows. Without stamps also
    those that a second copy of an equal value, or an end of the log, hides."""
    superseded: int
    """Missing updates after which a later value of the topic came in a snapshot or audit."""
    causes: MissingCauses
    """Of the missing."""
    pending: int
    """Updates in the covered span that are too young to be judged; not part of `expected`."""
    pending_applied: int
    """Pending updates that are there already."""
    duplicated: int
    """Rows of updates less distinct updates: over the node's whole log, or of what was stamped in the window asked
    for."""
    stale: int
    """Rows of updates that were older than the value of their topic, counted like `duplicated`. At least so many: a
    node remembers only the newest updates of each publisher.
    """
    refused: int
    """Rows of updates that were delivered but not stored, over a limit of the replica; counted like `duplicated`."""
    unreferenced: int
    """Updates that the node logged and the reference's log lacks; counted like `duplicated`."""
    complete_percent: float | None
    """(expected - missing) / expected; null when part of it is unknown, the reference's log does not show every update,
    or nothing was expected."""
    complete_percent_at_least: float | None
    """The same with all that is unknown, not seen or without a stamp counted as missing; null when `unseen` is."""
    complete_percent_at_most: float | None
    """The same with all of these counted as applied; if `unseen` is null, a share of the updates that the reference
    saw.
    """
    unseen: int | None = 0
    """Updates that the reference's log lacks, and this node's too: of any topic, so perhaps of this selector. Null when
    nobody can count them: the reference did not stamp them, or crashed."""
    unidentified: int = 0
    """Updates of the reference in the covered span, settled, that carry no stamp: in no other figure, since nothing
    tells whether the node got them."""
    first_missing: AwareDatetime | None = None
    """When the first update that is missing was published; null when none is."""
    last_missing: AwareDatetime | None = None
    going_on: bool | None = None
    """True if the loss had not ended by the end of the judged time. Null when nothing is missing, and where the updates
    since the last missing one show neither.
    """


class FinalFigures(Value):
    """Final values, by topic: exact on either basis."""

    equal: int
    different: int
    absent: int
    """The reference holds a value, the node none."""
    extra: int
    """The node holds a value, the reference none."""
    pending: int
    """Not equal, but changed too recently to be judged."""
    unknown: int
    """Not logged since a gap in the node's or the reference's log."""
    equal_percent: float | None
    """equal / (equal + different + absent + extra); null when part of it is unknown or there is no topic."""
    equal_percent_at_least: float | None
    """The same with the unknown counted as not equal."""

    @property
    def unequal(self) -> int:
        """Number of topics whose value is not the reference's."""
        return self.different + self.absent + self.extra


class Cumulative(Value):
    """Number of rows below a bound."""

    below_us: int
    rows: int


class Distribution(Value):
    """Durations: counts are exact, percentiles within 2.2 per cent, the extremes exact."""

    rows: int
    least_us: int
    p50_us: int
    p95_us: int
    p99_us: int
    most_us: int
    mean_us: int | None = None
    """Exact, rounded down; null where it was not computed."""


class LagFigures(Distribution):
    """A distribution, and its shape."""

    cumulative: tuple[Cumulative, ...]
