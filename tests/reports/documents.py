"""Finished reports for the tests of what is made of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from fanout.reports.values.document import (
    Attempt,
    ClockDifference,
    CompletenessPoint,
    CompletenessSection,
    CompletenessSeries,
    DifferingTopic,
    Inputs,
    LagPoint,
    LagSection,
    LagSeries,
    LogEnd,
    LogSummary,
    MissingUpdate,
    Parameters,
    PrefixAtNode,
    PrefixFigures,
    PrefixNodes,
    Propagation,
    ReadySection,
    ReadySummary,
    ReferenceSequences,
    ReferenceSummary,
    Report,
    RoundTrip,
    TargetReport,
    Verdict,
    WindowSummary,
)
from fanout.reports.values.figures import (
    Cumulative,
    FinalFigures,
    LagFigures,
    Listed,
    MissingCauses,
    UpdateFigures,
    percent,
)
from fanout.reports.values.findings import (
    ApartTopic,
    ConvergenceSection,
    ConvergenceSet,
    HeldValue,
    LinkEpoch,
    LinkSnapshots,
    Member,
    PrefixTraffic,
    Publisher,
    SnapshotSection,
    SourceTraffic,
    StalledTopic,
    StallFigures,
    StallSection,
    TrafficSection,
)

if TYPE_CHECKING:
    from fanout.reports.values.document import ReportName

BEGIN = datetime(2026, 2, 2, 2, 40, tzinfo=UTC)
END = BEGIN + timedelta(minutes=5)

HOSTILE = "a/</script><script>alert(1)</script>&\"'\x1b[31m\u202e\u2028http://evil.example/x"
"""A topic that anybody may publish."""


class _Counted(UpdateFigures):
    """Figures that belong to a selector without stamps."""


def stamped(
    *, expected: int = 100, missing: int = 0, unknown: int = 0, unseen: int | None = 0, **others: Any
) -> UpdateFigures:
    """Return figures in which the rest was applied."""
    names = ("reobtained", "conflated", "superseded", "pending", "pending_applied")
    counts: dict[str, Any] = dict.fromkeys((*names, "duplicated", "stale", "refused", "unreferenced"), 0) | others
    whole = expected + (unseen or 0) + counts.setdefault("unidentified", 0)
    at_least = percent(expected - missing - unknown, whole)
    return UpdateFigures(
        expected=expected,
        applied=expected - missing - unknown - counts["reobtained"] - counts["conflated"],
        missing=missing,
        causes=MissingCauses(new_epoch=missing),
        unknown=unknown,
        **counts,
        unseen=unseen,
        complete_percent=at_least if not unknown and expected == whole and unseen == 0 else None,
        complete_percent_at_least=None if unseen is None else at_least,
        complete_percent_at_most=percent(whole - missing, whole),
    )


def unstamped(*, seen: int = 100, **counts: Any) -> UpdateFigures:
    """Return figures of a selector whose updates carry no stamp."""
    return _Counted(**stamped(expected=seen, **counts).model_dump())


def final(*, equal: int = 10, different: int = 0, unknown: int = 0) -> FinalFigures:
    """Return final values of which some may differ."""
    share = percent(equal, equal + different + unknown)
    return FinalFigures(
        equal=equal,
        different=different,
        absent=0,
        extra=0,
        pending=0,
        unknown=unknown,
        equal_percent=None if unknown else share,
        equal_percent_at_least=share,
    )


def target(
    node: str = "edge",
    *,
    figures: UpdateFigures | None = None,
    finals: FinalFigures | None = None,
    held: bool = True,
    exact: bool = True,
    topic_filter: str = "plant/#",
    exclude: tuple[str, ...] = (),
    judged_until: datetime | None = END - timedelta(seconds=5),
    log_ends: LogEnd | None = None,
) -> TargetReport:
    """Return a selector, complete unless said otherwise."""
    figures = stamped() if figures is None else figures
    return TargetReport(
        node=node,
        link="up",
        filter=topic_filter,
        exclude=exclude,
        basis="unstamped" if isinstance(figures, _Counted) else "stamped",
        exact=exact,
        stamped_by=("hub",),
        complete_at=BEGIN if held else None,
        covered_from=BEGIN if held else None,
        covered_until=END,
        judged_until=judged_until,
        log_ends=log_ends,
        stamped=None if isinstance(figures, _Counted) else figures,
        unstamped=UpdateFigures(**figures.model_dump()) if isinstance(figures, _Counted) else None,
        final=final() if finals is None else finals,
    )


def lag_figures(least_us: int = 300, most_us: int = 90_000) -> LagFigures:
    """Return a distribution of ten rows."""
    return LagFigures(
        rows=10,
        least_us=least_us,
        p50_us=2_000,
        p95_us=40_000,
        p99_us=90_000,
        most_us=most_us,
        cumulative=(Cumulative(below_us=1024, rows=2), Cumulative(below_us=131_072, rows=10)),
    )


def report(
    *targets: TargetReport,
    hostile: bool = False,
    fail_under: float | None = None,
    reference: Literal["primary", "tap", "secondary", "union"] = "primary",
) -> Report:
    """Return a report over these selectors with something in every section."""
    topic = HOSTILE if hostile else "plant/a"
    name = HOSTILE if hostile else "edge"
    points = tuple(
        LagPoint(at=BEGIN + timedelta(seconds=second), rows=5, p50_us=900, p95_us=2000, p99_us=3000, most_us=9000)
        for second in (0, 10, 20, 60)
    )
    return Report(
        report="completeness",
        parameters=Parameters(reference=None, settle_s=5, depth=2, fail_under_percent=fail_under, list_limit=50),
        inputs=Inputs(directories=("var/log",), update_files=3, event_files=2, updates=12_345, events=67, log_schema=1),
        logs=(
            LogSummary(
                node=name,
                role="secondary",
                updates=12_345,
                events=67,
                begin=BEGIN,
                end=END,
                processes=2,
                stopped=False,
                gaps=1,
                absent_rows=4,
            ),
        ),
        reference=ReferenceSummary(
            name="hub",
            kind=reference,
            nodes=("hub",),
            chosen="the only primary in the logs",
            sequences=(ReferenceSequences(primary="hub", epoch=7, first=1, last=100, present=98, absent=2),),
        ),
        basis=("Stamped: exact relative to hub.",),
        window=WindowSummary(begin=BEGIN, end=END, settle_horizon_s=5, settled_until=END - timedelta(seconds=5)),
        notices=(f"{name} was looked at.",),
        targets=targets or (target(),),
        prefixes=Listed[PrefixFigures](
            total=1,
            listed=(
                PrefixFigures(
                    node=name,
                    link="up",
                    filter="plant/#",
                    prefix=topic,
                    expected=9,
                    missing=1,
                    unknown=0,
                    complete_percent_at_least=percent(8, 9),
                ),
            ),
        ),
        over_time=CompletenessSection(
            window_s=5,
            series=(
                CompletenessSeries(
                    node=name,
                    link="up",
                    points=tuple(
                        CompletenessPoint(
                            at=BEGIN + timedelta(seconds=5 * number), expected=100, missing=number % 7 // 6, unknown=0
                        )
                        for number in range(60)
                    ),
                ),
            ),
        ),
        prefix_map=Listed[PrefixNodes](
            total=1,
            listed=(
                PrefixNodes(
                    prefix=topic,
                    nodes=tuple(
                        PrefixAtNode(
                            node=node,
                            expected=9,
                            missing=missing,
                            unknown=0,
                            complete_percent_at_least=percent(9 - missing, 9),
                            complete_percent_at_most=percent(9 - missing, 9),
                        )
                        for node, missing in ((name, 1), ("other", 0))
                    ),
                ),
            ),
        ),
        missing=Listed[MissingUpdate](
            total=1234,
            listed=tuple(
                MissingUpdate(
                    node=name,
                    link="up",
                    filter="plant/#",
                    topic=topic,
                    primary="hub",
                    epoch=7,
                    sequence=number,
                    origin=BEGIN,
                    superseded=number % 2 == 0,
                    cause="new_epoch",
                )
                for number in range(20)
            ),
        ),
        differing=Listed[DifferingTopic](
            total=1,
            listed=(DifferingTopic(node=name, link="up", filter="plant/#", topic=topic, verdict="absent"),),
        ),
        lag=LagSection(
            propagation=(
                Propagation(node=name, link="up", filter="plant/#", stamped_by="hub", lag=lag_figures(-4000)),
                Propagation(node=name, link="up", filter="site/#", stamped_by="hub", lag=lag_figures(-5000)),
            ),
            heartbeat=(RoundTrip(node=name, link="up", lag=lag_figures()),),
            clocks=(
                ClockDifference(
                    node=name, link="up", stamped_by="hub", at_most_us=-5000, at_least_us=-5300, estimate_us=-5150
                ),
            ),
            window_s=10,
            over_time=(LagSeries(node=name, link="up", stamped_by="hub", points=points),),
        ),
        ready=ReadySection(
            links=(
                ReadySummary(
                    node=name,
                    link="up",
                    attempts=3,
                    ready=2,
                    first_live=BEGIN,
                    first_ready_s=0.25,
                    last_ready_s=61.5,
                    most_ready_s=7300,
                    topics=200_000,
                    evidence="marker",
                    tear_downs=1,
                ),
            ),
            attempts=Listed[Attempt](
                total=2,
                listed=(
                    Attempt(
                        node=name,
                        link="up",
                        connecting=BEGIN,
                        live=END,
                        ready_s=300,
                        topics=5,
                        evidence=topic,
                    ),
                ),
            ),
        ),
        verdict=None
        if fail_under is None
        else Verdict(fail_under_percent=fail_under, lowest_percent=98.7654321, passed=False, because=f"lowest: {name}"),
    )


def section_report(name: ReportName, *, place: str = "edge") -> Report:
    """Return the report on snapshots, convergence, stalls or traffic, with `place` for every name and topic."""
    return report().model_copy(
        update={
            "report": name,
            "targets": (),
            "lag": LagSection(),
            "ready": ReadySection(),
            "prefixes": None,
            "prefix_map": None,
            "over_time": None,
            "missing": None,
            "differing": None,
            name: {"snapshots": snapshots, "convergence": convergence, "stalls": stalls, "traffic": traffic}[name](
                place
            ),
        }
    )


def snapshots(place: str) -> SnapshotSection:
    """Return a link with an epoch that was torn down, one that is ready, one that never was and a young one."""
    epochs = tuple(
        LinkEpoch(
            node=place,
            link="up",
            process=1,
            epoch=number,
            begin=BEGIN + timedelta(seconds=10 * number),
            verdict="ready" if ready_s is not None else "never" if number == 2 else "pending",
            ready=None if ready_s is None else BEGIN + timedelta(seconds=10 * number + ready_s),
            ready_s=ready_s,
            entered_live=0 if ready_s is None else 1,
            selectors=2,
            topics=None if ready_s is None else 1_234,
            evidence=place if ready_s is not None else "",
            tear_downs=int(number == 0),
            last=BEGIN + timedelta(seconds=10 * number + 9),
        )
        for number, ready_s in enumerate((2.5, 4.0, None, None))
    )
    link = LinkSnapshots(
        node=place,
        link="up",
        epochs=4,
        ready=2,
        never=1,
        pending=1,
        tear_downs=1,
        least_ready_s=2.5,
        most_ready_s=4,
        last_ready_s=4,
        topics=1_234,
        evidence="barrier",
    )
    return SnapshotSection(links=(link,), epochs=Listed[LinkEpoch](total=9, listed=epochs))


def convergence(place: str) -> ConvergenceSection:
    """Return a selector whose two nodes differ on one topic of a hundred."""
    found = ConvergenceSet(
        filter=place,
        exclude=("x",),
        basis="stamped",
        settled_until=END,
        members=(
            Member(node="hub", link="", topics=100, digest="00000000000000aa"),
            Member(node=place, link="up", topics=99, digest="00000000000000bb"),
        ),
        equal=99,
        apart=1,
        pending=0,
        unknown=0,
        windows_compared=7,
        windows_equal=5,
        last_equal=END,
    )
    values = (HeldValue(node="hub", link="", digest="0a"), HeldValue(node=place, link="up", digest=None))
    apart = Listed[ApartTopic](total=1, listed=(ApartTopic(filter=place, topic=place, values=values),))
    return ConvergenceSection(sets=(found,), apart=apart, window_s=10)


def stalls(place: str) -> StallSection:
    """Return a selector of which two topics stopped, one of them elsewhere too."""
    figures = StallFigures(
        node=place,
        link="up",
        filter=place,
        basis="stamped",
        current=8,
        stalled=2,
        alone=1,
        pending=0,
        unknown=0,
        most_behind_s=75,
    )
    topics = tuple(
        StalledTopic(
            node=place,
            link="up",
            filter=place,
            topic=f"{place}{number}",
            basis="stamped",
            newest=BEGIN if number else None,
            first_lacking=BEGIN + timedelta(seconds=3),
            reference_newest=END,
            lacking=12,
            stalled_links=1,
            current_links=1,
        )
        for number in range(2)
    )
    return StallSection(targets=(figures,), topics=Listed[StalledTopic](total=2, listed=topics))


def traffic(place: str) -> TrafficSection:
    """Return a prefix with three quarters of what a union saw."""
    source = SourceTraffic(
        source=place, basis="unstamped", exact=False, updates=400, payload_bytes=0, topics=9, prefixes=2, pending=3
    )
    prefix = PrefixTraffic(
        source=place,
        prefix=place,
        updates=300,
        updates_percent=75,
        payload_bytes=0,
        bytes_percent=None,
        topics=4,
        retained=300,
        publishers=(Publisher(node=None, updates=200), Publisher(node=place, updates=100)),
    )
    return TrafficSection(depth=1, sources=(source,), prefixes=Listed[PrefixTraffic](total=2, listed=(prefix,)))


def whole_report(*, place: str = "edge") -> Report:
    """Return the report on everything, with `place` for every name and topic of its sections."""
    made = report(target(place), target("other"), hostile=place == HOSTILE, fail_under=99)
    sections = {"snapshots": snapshots, "convergence": convergence, "stalls": stalls, "traffic": traffic}
    return made.model_copy(update={"report": "all"} | {name: section(place) for name, section in sections.items()})
