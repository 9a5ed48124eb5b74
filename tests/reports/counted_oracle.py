"""A slow, obvious version of counting updates without stamps, in plain Python; see decision 59."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.reports.logs import Row
from tests.reports.oracle import micros

FOREVER = 2**62
MARGIN_US = 50_000
NEAR_US = 500_000
DUP = 1

Value = tuple[str, int]
"""A topic and a digest."""
Interval = tuple[int, int]


@dataclass
class Judged:
    """What is said of the reference's rows that a node had to get, by their positions."""

    applied: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    timed: dict[int, int] = field(default_factory=dict)
    """By position how much later the node logged it, as the clocks say, where the pair is known."""
    extra: int = 0


class Counting:
    """The updates of one node against those of the reference.

    Args:
        seen: The live rows of the reference.
        got: Those of the node.
        due_us: After when, and until when, the node had to get what the reference logged.
        width_us: The width of the windows in which delays are measured.
        horizon_us: How far apart two nodes may log an update where nothing is measured.
        away: When the node's link was away, by its clock.
        tap_away: When the reference's was.
    """

    def __init__(
        self,
        seen: Sequence[Row],
        got: Sequence[Row],
        *,
        due_us: Interval,
        width_us: int,
        horizon_us: int,
        away: Iterable[Interval],
        tap_away: Iterable[Interval],
    ) -> None:
        self.seen: dict[Value, list[Row]] = defaultdict(list)
        self.got: dict[Value, list[Row]] = defaultdict(list)
        for rows, by_value in ((seen, self.seen), (got, self.got)):
            for row in sorted(rows, key=lambda row: (micros(row["applied"]), row["log_pos"])):
                by_value[row["topic"], row["digest"]].append(row)
        self.due_us = due_us
        self.width_us = width_us
        self.horizon_us = horizon_us
        self.waits = [(until, until, 0, until - after) for after, until in away]
        self.waits += [(after, until, until - after, 0) for after, until in tap_away]
        self.delays: dict[int, list[int]] = defaultdict(list)
        for value, (row, *others) in self.seen.items():
            if not others and len(self.got.get(value, ())) == 1:
                at_us = micros(self.got[value][0]["applied"])
                self.delays[at_us // width_us].append(at_us - micros(row["applied"]))

    def waited(self, at_us: int) -> Interval:
        """Return how long the updates of about then may have waited for the reference, and for the node."""
        window = at_us // self.width_us
        begin_us = (window - 2) * self.width_us - self.horizon_us
        end_us = (window + 3) * self.width_us + self.horizon_us
        near = [one for one in self.waits if one[0] < end_us and one[1] > begin_us]
        return sum(one[2] for one in near), sum(one[3] for one in near)

    def interval(self, at_us: int) -> Interval:
        """Return by how much later than the reference the node may have logged what it logged then."""
        window = at_us // self.width_us
        for distance in (1, 2, 4):
            near = [one for beside in range(-distance, distance + 1) for one in self.delays.get(window + beside, ())]
            if len(near) >= 5:
                spread_us = max(near) - min(near)
                margin_us = max(MARGIN_US, min(4 * spread_us, 1_000_000 + spread_us // 4))
                return min(near) - margin_us, max(near) + margin_us
        all_of_them = [one for found in self.delays.values() for one in found] or [0]
        waited_us = self.horizon_us + sum(self.waited(at_us))
        return min(all_of_them) - waited_us, max(all_of_them) + waited_us

    def judge(self) -> Judged:
        """Return what is said of each row."""
        judged = Judged()
        for value in self.seen.keys() | self.got.keys():
            lost: list[int] = []
            extra = strays = 0
            for seen, got in self._stretches(value):
                self._count(seen, got, judged, lost)
                once = sum(not row["flags"] & DUP for row in got)
                extra += max(0, once - len(seen))
                strays += max(0, once - sum(not row["flags"] & DUP for row in seen))
            judged.extra += 0 if lost else extra
            (judged.unknown if strays else judged.missing).update(lost)
        return judged

    def _stretches(self, value: Value) -> list[tuple[list[Row], list[Row]]]:
        """Return the rows of a value, of both sides, cut where no update can be on both sides of the cut."""
        seen, got = self.seen.get(value, []), self.got.get(value, [])
        if len(seen) == 1:
            return [(seen, got)]
        rows = [(micros(row["applied"]), 0, micros(row["applied"]), row) for row in seen]
        for row in got:
            at_us = micros(row["applied"])
            least_us, most_us = self.interval(at_us)
            sooner_us, later_us = self.waited(at_us) if row["flags"] & DUP else (0, 0)
            rows.append((at_us - most_us - later_us, 1, at_us - least_us + sooner_us, row))
        groups: list[list[tuple[list[Row], list[Row]]]] = []
        reached = -FOREVER
        for start, side, end, row in sorted(rows, key=lambda one: one[:2]):
            if start > reached + NEAR_US:
                groups.append([])
            if start > reached:
                groups[-1].append(([], []))
            groups[-1][-1][side].append(row)
            reached = max(reached, end)
        found = [stretch for group in groups for stretch in self._joined(group)]
        for stretch in found:
            for side_rows in stretch:
                side_rows.sort(key=lambda row: (micros(row["applied"]), row["log_pos"]))
        return found

    def _joined(self, group: list[tuple[list[Row], list[Row]]]) -> list[tuple[list[Row], list[Row]]]:
        """Return stretches that are near to each other, as one where all of its rows are sure and come out even."""
        seen, got = ([row for stretch in group for row in stretch[side]] for side in (0, 1))
        weak = any(row["flags"] & DUP for row in (*seen, *got)) or not all(map(self._is_due, seen))
        return group if weak or len(seen) != len(got) else [(seen, got)]

    def _count(self, seen: list[Row], got: list[Row], judged: Judged, lost: list[int]) -> None:
        """Judge the rows of a stretch; to `lost` go those that are lost, unless a late one of another is theirs."""
        once = [row for row in got if not row["flags"] & DUP]
        again = len(got) - len(once)
        weak = [row for row in seen if not self._is_due(row) or row["flags"] & DUP]
        strong = [row for row in seen if self._is_due(row) and not row["flags"] & DUP]
        due = {row["log_pos"] for row in seen if self._is_due(row)}
        if len(seen) == 1 and got:
            judged.applied |= due
            if once:
                self._time(seen[:1], once[:1], judged)
            return
        for number, row in enumerate([*weak, *strong], 1):
            position = row["log_pos"]
            if position not in due:
                continue
            if number <= len(once):
                judged.applied.add(position)
            elif row in strong and number - len(weak) > len(once) + again:
                lost.append(position)
            else:
                judged.unknown.add(position)
        if len(seen) == len(once) and not again and (not weak or not strong):
            self._time(seen, once, judged)

    def _is_due(self, row: Row) -> bool:
        return self.due_us[0] < micros(row["applied"]) <= self.due_us[1]

    def _time(self, seen: list[Row], got: list[Row], judged: Judged) -> None:
        for one, its in zip(seen, got, strict=True):
            judged.timed[one["log_pos"]] = micros(its["applied"]) - micros(one["applied"])


def count_by_value(rows: Mapping[int, Row], positions: Iterable[int]) -> Counter[Value]:
    """Return how many of some positions are of each value."""
    return Counter((rows[one]["topic"], rows[one]["digest"]) for one in positions)
