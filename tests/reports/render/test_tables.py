"""The tables of a report (`table`, `tables`, `completeness_tables`, `lag_tables`)."""

from __future__ import annotations

from fanout.reports.render.table import Table, build, share_at_most_cell, share_cell
from fanout.reports.render.tables import tables_of
from fanout.reports.values.document import ClockDifference, CorrectedLag, HopLag, Report, ReportName
from tests.reports.documents import HOSTILE, final, report, section_report, stamped, target, unstamped


def texts(made: Report, key: str) -> list[dict[str, str]]:
    """Return the rows of one table as texts by column name."""
    table = table_of(made, key)
    names = [column.name for column in table.columns]
    return [dict(zip(names, (cell.text.replace("\u00a0", " ") for cell in row), strict=True)) for row in table.rows]


def table_of(made: Report, key: str) -> Table:
    """Return one table."""
    return next(table for table in tables_of(made) if table.key == key)


def test_every_section_with_rows_is_a_table() -> None:
    """Tables come in reading order; sections without rows are left out."""
    made = report(target(), target(figures=unstamped()))
    assert [table.key for table in tables_of(made)] == [
        "updates",
        "over-time",
        "final-values",
        "prefixes",
        "missing",
        "differing",
        "propagation",
        "heartbeat",
        "clocks",
        "ready",
        "attempts",
        "logs",
    ]
    for table in tables_of(made):
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_stamped_selector_shows_what_it_got() -> None:
    """Exact figures stand bare; what is never other than 0 takes no column."""
    made = report(target(figures=stamped(missing=3, superseded=2), exclude=("plant/x",)))
    row = texts(made, "updates")[0]
    assert row["selector"] == "plant/# (1 excluded)"
    assert (row["complete"], row["expected"], row["applied"], row["missing"]) == ("97.0 %", "100", "97", "3")
    assert row["superseded"] == "2"
    assert "unknown" not in row


def test_what_links_were_doing_when_they_lost_updates_is_said_of_those_that_did() -> None:
    """On either basis."""
    whole, lossy, doubtful = stamped(), stamped(missing=3), unstamped(missing=5)
    made = report(target(figures=whole), target(figures=lossy), target("other", figures=doubtful))
    first, second = texts(made, "causes")
    assert (first["missing"], first["session lost"], first["unexplained"]) == ("3", "3", "0")
    assert (second["missing"], second["session lost"]) == ("5", "5")
    assert [row[-1].tone for row in table_of(made, "causes").rows] == ["good", "good"]
    assert "causes" not in [table.key for table in tables_of(report(target(figures=whole)))]


def test_completeness_over_time_names_the_worst_window_of_each_link() -> None:
    """And in how many windows something is missing; what nobody knows of is a figure of its own."""
    (row,) = texts(report(), "over-time")
    assert (row["windows"], row["with missing"], row["worst at (UTC)"]) == ("60", "8", "2026-02-02 02:40:30")
    assert (row["complete there"], row["expected there"], row["missing there"]) == ("99.0 %", "100", "1")
    made = report()
    assert made.over_time is not None
    (series,) = made.over_time.series
    points = [
        point.model_copy(update={"missing": 0, "unknown": 7 * (at == 3)}) for at, point in enumerate(series.points)
    ]
    doubtful = series.model_copy(update={"points": tuple(points)})
    section = made.over_time.model_copy(update={"series": (doubtful,)})
    (row,) = texts(made.model_copy(update={"over_time": section}), "over-time")
    assert (row["with missing"], row["with unknown"]) == ("0", "1")
    assert (row["complete there"], row["missing there"], row["unknown there"]) == ("≥ 93.0 %", "0", "7")


def test_bounds_are_marked_as_bounds() -> None:
    """What a tap saw is `at least`, what a gap hides is `at least` too, and neither is green."""
    made = report(
        target(figures=stamped(missing=3, unseen=None), exact=False),
        target(figures=stamped(unknown=4)),
        target(figures=stamped(expected=0), held=False),
        target(figures=stamped(unseen=None), exact=False),
        target(figures=stamped(unseen=25), exact=False),
        target(figures=stamped(unidentified=100)),
    )
    table = table_of(made, "updates")
    shown = [row["complete"] for row in texts(made, "updates")]
    assert shown == ["≤ 97.0 %", "≥ 96.0 %", "never held", "≤ 100 %", "≥ 80.0 %", "≥ 50.0 %"]
    assert [row[4].tone for row in table.rows] == ["bad", "fair", "bad", "", "fair", "fair"]
    assert texts(made, "updates")[0]["missing"] == "≥ 3"


def test_final_values_show_the_basis_and_what_is_unknown() -> None:
    """Each row says its basis; unknown topics make the share a bound."""
    made = report(target(finals=final(unknown=10)), target(figures=unstamped(), finals=final(different=1)))
    rows = texts(made, "final-values")
    assert [(row["basis"], row["same values"]) for row in rows] == [("stamped", "≥ 50.0 %"), ("unstamped", "90.9 %")]


def test_clock_differences_are_said_once_for_each_pair() -> None:
    """The worst of several selectors stands for the pair of hosts."""
    note = table_of(report(), "propagation").note
    assert note.count("differ by at least") == 1
    assert "5.00\u00a0ms" in note


def with_lag(**fields: object) -> Report:
    """Return a report with other figures of lag."""
    made = report()
    return made.model_copy(update={"lag": made.lag.model_copy(update=fields)})


def test_corrected_times_stand_first_and_what_the_clocks_say_behind() -> None:
    """With how right they are; where the difference of the clocks is not known, that is said instead."""
    first, second = report().lag.propagation
    right = CorrectedLag(p50_us=1_000, p95_us=2_000, p99_us=30_000, most_us=40_000, mean_us=1_200, uncertain_us=500)
    made = with_lag(propagation=(first.model_copy(update={"corrected": right}), second))
    known, unknown = texts(made, "propagation")
    assert (known["mean"], known["half within"], known["99 % within"]) == ("1.20 ms", "1.00 ms", "30.0 ms")
    assert (known["longest"], known["accurate to"], known["99 % as the clocks say"]) == (
        "40.0 ms",
        "± 500 µs",
        "90.0 ms",
    )
    assert (unknown["99 % within"], unknown["accurate to"]) == ("90.0 ms", "not known")
    note = table_of(made, "propagation").note
    assert "by at least 5.00\u00a0ms" in note
    assert "4.00\u00a0ms" not in note, "that of a corrected one is no news"


def test_hops_say_how_long_they_took_and_of_how_many_updates() -> None:
    """Other numbers of updates at both ends are marked; without the clocks' difference it is said that it is in it."""
    hop = HopLag(
        from_node="hub",
        to_node=HOSTILE,
        stamped_by="hub",
        updates=90,
        mean_us=3_004_000,
        corrected_mean_us=4_000,
        uncertain_us=300,
    )
    blind = HopLag(
        from_node="edge",
        to_node="leaf",
        stamped_by="hub",
        updates_before=90,
        updates=80,
        mean_us=-900,
        corrected_mean_us=None,
        uncertain_us=None,
    )
    made = with_lag(hops=(hop, blind))
    known, unknown = texts(made, "hop-times")
    assert (known["mean time of the hop"], known["accurate to"], known["as the clocks say"]) == (
        "4.00 ms",
        "± 300 µs",
        "3.00 s",
    )
    assert (unknown["mean time of the hop"], unknown["accurate to"]) == ("-900 µs", "not known")
    table = table_of(made, "hop-times")
    assert [row[4].tone for row in table.rows] == ["", "fair"]
    assert "\x1b" not in table.rows[0][1].text


def test_clocks_are_said_in_words() -> None:
    """Ahead or behind, and how far at least or at most where only one side is known; one's own clock is left out."""
    bounds = [(3_000_400, 2_999_600), (-1_999_600, -2_000_400), (300, -500), (-5_000, None), (7_000, None)]
    clocks = tuple(
        ClockDifference(
            node="edge",
            link="up",
            stamped_by="hub",
            at_most_us=at_most_us,
            at_least_us=at_least_us,
            estimate_us=None if at_least_us is None else (at_most_us + at_least_us) // 2,
        )
        for at_most_us, at_least_us in bounds
    )
    own = clocks[2].model_copy(update={"stamped_by": "edge"})
    rows = texts(with_lag(clocks=(*clocks, own)), "clocks")
    assert [(row["its clock is"], row["accurate to"]) for row in rows] == [
        ("3.00 s ahead", "± 400 µs"),
        ("2.00 s behind", "± 400 µs"),
        ("no difference seen", "± 400 µs"),
        ("at least 5.00 ms behind", "not known"),
        ("at most 7.00 ms ahead", "not known"),
    ]


def test_single_attempts_are_not_repeated() -> None:
    """When every link became ready once, the summary says it all."""
    made = report()
    once = made.ready.model_copy(update={"attempts": made.ready.attempts.model_copy(update={"total": 1})})
    assert "attempts" not in [table.key for table in tables_of(made.model_copy(update={"ready": once}))]


def test_a_lag_report_has_only_its_own_tables() -> None:
    """Without targets nothing is said of completeness."""
    sections = ("prefixes", "over_time", "missing", "differing", "repeated")
    made = report().model_copy(update={"targets": ()} | dict.fromkeys(sections))
    assert [table.key for table in tables_of(made)] == [
        "propagation",
        "heartbeat",
        "clocks",
        "ready",
        "attempts",
        "logs",
    ]


def test_shares_are_green_only_when_proved_whole() -> None:
    """Anything less is a warning, a bound of 100 per cent proves nothing, and no share has no colour."""
    assert [share_cell(share).tone for share in (100, 99.5, 98, None)] == ["good", "fair", "bad", "dim"]
    assert [share_at_most_cell(share).tone for share in (100, 99.5, None)] == ["", "fair", "dim"]


def test_a_table_without_a_note_hides_columns_silently() -> None:
    """Lists need no explanation of what they leave out."""
    assert build("key", "title", (), (), "").note == ""


def test_each_single_section_has_its_own_tables() -> None:
    """The four sections show their figures and name what is doubtful; of what they do not make nothing is shown."""
    keys: dict[ReportName, list[str]] = {
        "snapshots": ["snapshots", "epochs"],
        "convergence": ["convergence", "members", "apart"],
        "stalls": ["stalls", "stalled-topics"],
        "traffic": ["traffic", "traffic-prefixes"],
    }
    for name, wanted in keys.items():
        made = section_report(name, place=HOSTILE)
        assert [table.key for table in tables_of(made)] == [*wanted, "logs"]
        for table in tables_of(made):
            assert not any("\x1b" in cell.text for row in table.rows for cell in row)
    assert [row["ready (UTC)"] for row in texts(section_report("snapshots"), "epochs")][2:] == ["never", "pending"]
    assert texts(section_report("convergence"), "apart")[1]["value"] == "none"
    assert [row["newest here (UTC)"][:5] for row in texts(section_report("stalls"), "stalled-topics")] == [
        "never",
        "2026-",
    ]
    prefix = texts(section_report("traffic"), "traffic-prefixes")[0]
    assert (prefix["updates"], prefix["share"], prefix["published at"]) == ("≥ 300", "75.0 %", "edge (33.3 %)")
