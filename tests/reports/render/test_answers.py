"""The three answers on a terminal, on a page and in Markdown."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console

from fanout.errors import ReportError
from fanout.reports.render.markdown import render_markdown
from fanout.reports.render.page import render_page
from fanout.reports.render.terminal import print_report
from fanout.reports.values.document import Alarm, MissingTopic, Report, TargetReport, Verdict
from fanout.reports.values.figures import Listed
from fanout.reports.values.summary import (
    Answer,
    CauseCount,
    HopSummary,
    LagSummary,
    NodeSummary,
    NodeTrend,
    PrefixMissing,
    Summary,
    Trend,
)
from tests.reports.documents import BEGIN, END, HOSTILE, report, section_report, stalls, target


def node(name: str = "edge", *, answer: Answer = "complete", missing: int = 0, **others: object) -> NodeSummary:
    """Return a node that got everything, but for what is said."""
    figures: dict[str, object] = {
        "complete_percent_at_least": 100.0,
        "complete_percent_at_most": 100.0,
        "missing_is_exact": True,
        "unknown": 0,
        "first_missing": None,
        "last_missing": None,
        "going_on": None,
        "causes": (),
        "prefixes": (),
        "topics_behind": 0,
        "topics_different": 0,
        "never_held": (),
    }
    return NodeSummary.model_validate({"node": name, "answer": answer, "missing": missing, **figures, **others})


def steady_loss(name: str = "lossy") -> NodeSummary:
    """Return a node that loses two of a hundred, for no reason that its log says."""
    return node(
        name,
        answer="not_complete",
        missing=834,
        complete_percent_at_least=98.1,
        complete_percent_at_most=98.1,
        first_missing=BEGIN + timedelta(seconds=4),
        last_missing=END,
        going_on=True,
        causes=(CauseCount(cause="live", updates=834),),
        prefixes=(PrefixMissing(prefix="plant/hot", missing=430), PrefixMissing(prefix="plant/b", missing=12)),
        topics_behind=32,
    )


def outage(name: str = "broken") -> NodeSummary:
    """Return a node that was away for a while."""
    return node(
        name,
        answer="not_complete",
        missing=1648,
        missing_is_exact=False,
        unknown=7,
        complete_percent_at_least=91.6,
        complete_percent_at_most=93.0,
        first_missing=BEGIN + timedelta(seconds=60),
        last_missing=BEGIN + timedelta(seconds=120),
        going_on=False,
        causes=(CauseCount(cause="new_epoch", updates=1553), CauseCount(cause="live", updates=95)),
    )


def answered(*nodes: NodeSummary, answer: Answer, topic: str | None = None, **others: object) -> Report:
    """Return a report with these answers."""
    made = report()
    summary = Summary.model_validate({"answer": answer, "nodes": nodes, "lag": (), "hops": (), "trend": None, **others})
    lacking = None
    if topic is not None:
        listed = MissingTopic(
            node="lossy",
            link="up",
            filter="#",
            topic=topic,
            missing=430,
            unknown=0,
            superseded=0,
            first_missing=BEGIN,
            last_missing=END,
            going_on=True,
            cause="live",
        )
        lacking = Listed[MissingTopic](total=77, listed=(listed,))
    return made.model_copy(update={"summary": summary, "missing_topics": lacking})


def on_terminal(made: Report, *, width: int = 120, verbose: bool = False) -> str:
    """Return what a terminal without colours shows."""
    out = StringIO()
    print_report(made, console=Console(file=out, width=width), verbose=verbose)
    return "\n".join(line.rstrip() for line in out.getvalue().replace("\u00a0", " ").splitlines())


def test_what_is_missing_stands_first() -> None:
    """The verdict is the first line; each node has its share, since when, whether it goes on, why, and what to do."""
    made = answered(outage(), steady_loss(), node("clean"), answer="not_complete", topic="plant/hot")
    text = on_terminal(made)
    lines = text.splitlines()
    assert lines[0] == (
        "NOT COMPLETE  2 of 3 secondaries lack updates or values: broken (session lost), lossy (unexplained)"
    )
    by_node = {line.split()[0]: " ".join(line.split()) for line in reversed(lines) if line}
    assert "broken ≥ 91.6 % ≥ 1,648 7 02:41:00 02:42:00 session lost 1,553," in by_node["broken"]
    assert any(" ".join(line.split()).startswith("lossy plant/hot 430") for line in lines)  # in the table of topics
    of_lossy = by_node["lossy"]
    assert of_lossy.startswith("lossy 98.1 % 834 0 02:40:04 still going on unexplained 834")
    assert "plant/hot 430" in of_lossy
    assert "How late was it?" in text
    assert "A node without figures got no update that another log has a time for." in text
    assert by_node["clean"].startswith("clean 100 % 0")
    assert "Session lost (1,553): the primary forgot the session" in text
    assert "Unexplained (929): nothing in the logs says why: the link was there, and skipped nothing." in text
    assert "Missing updates by topic, worst first" in text
    assert "1 of 77." in text
    assert "Updates, one by one" not in text
    assert "Updates, one by one" in on_terminal(made, verbose=True)


def test_topics_that_stopped_are_behind_by_a_number_or_a_bound() -> None:
    """Without stamps nothing tells which of some was the first that did not come."""
    section = stalls("edge")
    for basis, said in (("stamped", "12"), ("unstamped", "≥ 12")):
        topics = tuple(one.model_copy(update={"basis": basis}) for one in section.topics.listed)
        listed = section.topics.model_copy(update={"listed": topics})
        made = answered(node(), answer="not_complete").model_copy(
            update={"stalls": section.model_copy(update={"topics": listed})}
        )
        rows = [line.split() for line in on_terminal(made, width=200).splitlines() if line.startswith("edge  edge")]
        assert {" ".join(row[row.index("02:45:00") + 1 :]) for row in rows} == {said}


def test_all_fine_is_said_in_a_line() -> None:
    """Columns of what is not there are left out, and so is what to do."""
    text = on_terminal(answered(node(), node("leaf"), answer="complete"))
    assert text.splitlines()[0] == "COMPLETE  2 secondaries got everything"
    for absent in ("since", "why", "What to do", "behind", "Missing updates"):
        assert absent not in text


def test_a_log_that_ends_early_proves_nothing_of_what_came_later() -> None:
    """The first line says up to when a node was checked, and why; one that was stopped is complete so far."""
    made = answered(node(), node("leaf"), answer="complete")
    dead = target("leaf", judged_until=BEGIN + timedelta(seconds=100))
    late = target("late", judged_until=END - timedelta(seconds=11))
    waiting = target("edge", judged_until=END - timedelta(seconds=9))

    def first_line(*targets: TargetReport, **changed: object) -> str:
        return on_terminal(made.model_copy(update={"targets": targets, **changed}), width=300).splitlines()[0]

    assert first_line(target(), waiting) == "COMPLETE  2 secondaries got everything"
    assert first_line(target(), target("old", judged_until=None)) == "COMPLETE  2 secondaries got everything"
    only = "leaf was checked up to 02:41:40 only"
    assert first_line(target(), dead) == f"COMPLETE SO FAR  2 secondaries got everything; {only}"
    only = "leaf and 1 other were checked up to 02:41:40 only"
    assert first_line(late, dead, dead) == f"COMPLETE SO FAR  2 secondaries got everything; {only}"
    assert first_line(dead, window=None) == "COMPLETE  2 secondaries got everything"
    stopped = target("leaf", judged_until=BEGIN + timedelta(seconds=100), log_ends="stopped")
    until = "leaf was stopped in good order, and checked up to 02:41:40"
    assert first_line(target(), stopped) == f"COMPLETE  2 secondaries got everything; {until}"
    killed = target("edge", judged_until=BEGIN + timedelta(seconds=90), log_ends="killed")
    why = "edge was checked up to 02:41:30 only: its log ends without a stop, so the node was killed or hangs"
    assert first_line(stopped, killed) == f"COMPLETE SO FAR  2 secondaries got everything; {until}; {why}"
    late = late.model_copy(update={"log_ends": "not_shipped"})
    assert first_line(late).endswith("so the node was killed, or the rest is not shipped yet")
    lacking = answered(steady_loss(), answer="not_complete").model_copy(update={"targets": (dead,)})
    first = on_terminal(lacking, width=200).splitlines()[0]
    said = "the one secondary lacks updates or values: lossy (unexplained)"
    assert first == f"NOT COMPLETE  {said}; leaf was checked up to 02:41:40 only"
    many = answered(outage(), *(node(name, answer="not_complete") for name in "abcd"), answer="not_complete")
    first = on_terminal(many, width=200).splitlines()[0]
    assert first.endswith("5 of 5 secondaries lack updates or values: broken (session lost), a, b and 2 others")


def test_the_end_that_is_not_checked_reaches_back_to_where_the_node_that_is_checked_least_is() -> None:
    """A node that was away shortly before may be checked less far than the settle horizon; an early one is named."""
    made = answered(node(), node("leaf"), answer="complete")
    waiting = target("edge", judged_until=END - timedelta(seconds=9))
    early = target("dead", judged_until=BEGIN + timedelta(seconds=100))
    for targets, young in (((target(),), "5.00 s"), ((target(), waiting, early), "9.00 s")):
        text = on_terminal(made.model_copy(update={"targets": targets}), width=300)
        assert f"the last {young} not checked yet" in text


def alarm(**fields: object) -> Alarm:
    """Return an alarm of a link that lacks updates."""
    common = {"node": "lossy", "link": "up", "kind": "alarm", "reason": "", "hint": "", "times": 1}
    return Alarm.model_validate(common | {"first": BEGIN, "last": BEGIN} | fields)


def test_logs_say_themselves_what_is_wrong() -> None:
    """A refusal stands there with its hint, at most two of a node; of a node that is complete nothing does."""
    refused = "the primary refused the subscription plant/s/#: Not authorized (0x87)"
    alarms = (
        alarm(message="link is down", reason=refused, hint=f"Grant it{HOSTILE}", times=3),
        alarm(message="second", hint="Do this"),
        alarm(message="third", hint="Do that"),
        alarm(message="audit ended"),
        alarm(node="clean", message="fourth", hint="Nothing"),
    )
    made = answered(steady_loss(), node("clean"), answer="not_complete").model_copy(update={"alarms": alarms})
    text = on_terminal(made, width=2_000)
    assert f"The log of lossy says at 02:40:00, 3 times: link is down: {refused}. Grant it" in text
    assert "The log of lossy says at 02:40:00: second. Do this." in text
    for absent in ("third", "audit ended", "fourth", "\x1b"):
        assert absent not in text
    in_markdown = render_markdown(made)
    for raw in ("<script", "http://", "\x1b"):
        assert raw not in in_markdown
    assert "Run `fanout explain TOPIC` at the node" in in_markdown


def test_skipped_messages_have_their_reasons() -> None:
    """Added up over links, as the logs say them."""
    skipping = steady_loss().model_copy(update={"causes": (CauseCount(cause="skipped", updates=9),)})
    alarms = [alarm(kind="skipped", message="packet_too_large", link=link, times=5) for link in ("up", "down")]
    made = answered(skipping, answer="not_complete").model_copy(update={"alarms": tuple(alarms)})
    text = on_terminal(made, width=400)
    assert "skipped by the node 9" in text
    assert "Skipped in all, as the logs say: packet too large 10." in text


def test_what_nobody_can_tell_has_its_reason() -> None:
    """The log of one ends without a stop, that of another has a gap, and values of a third repeat."""
    names = ("ended", "torn", "repeats")
    unknown = [node(name, answer="not_proved", unknown=5, complete_percent_at_least=90.0) for name in names]
    made = answered(*unknown, node("leaf"), answer="not_proved")
    log = made.logs[0]
    logs = tuple(log.model_copy(update={"node": name, "gaps": int(name == "torn"), "absent_rows": 0}) for name in names)
    ended = target("ended", log_ends="killed")
    text = on_terminal(made.model_copy(update={"logs": logs, "targets": (ended, target("torn"))}), width=400)
    assert text.splitlines()[0].endswith(
        "of 15 updates nobody can tell: the log of ended ends without a stop; the log of torn has a gap; equal values "
        "at repeats cannot be told apart"
    )
    assert "The log of ended ends without a stop: see whether the node runs, and give the rest of its log." in text
    assert "Equal values at repeats cannot be told apart: let updates be stamped" in text


def test_lag_is_shown_with_the_clocks_corrected() -> None:
    """Where nobody knows a clock, the section says why and what to do.

    A difference that is smaller than it is uncertain is none.
    """
    lag = [
        LagSummary(
            node="far",
            stamped_by="hub",
            updates=9,
            p50_us=-1_000,
            p99_us=90_000,
            uncertain_us=40_000,
            raw_p99_us=52_000,
            clock_ahead_us=-38_000,
        ),
        LagSummary(
            node="edge",
            stamped_by="hub",
            updates=9,
            p50_us=900,
            p99_us=30_000,
            uncertain_us=400,
            raw_p99_us=3_030_000,
            clock_ahead_us=3_000_000,
        ),
        LagSummary(
            node="leaf",
            stamped_by="hub",
            updates=9,
            p50_us=None,
            p99_us=None,
            uncertain_us=None,
            raw_p99_us=44_000,
            clock_ahead_us=None,
        ),
    ]
    hops = [HopSummary(from_node="hub", to_node="edge", stamped_by="hub", mean_us=1_500, uncertain_us=None)]
    text = on_terminal(answered(node(), answer="complete", lag=lag, hops=hops))
    squeezed = [" ".join(line.split()) for line in text.splitlines()]
    assert "edge hub 9 900 µs 30.0 ms ± 400 µs 3.00 s ahead" in squeezed
    assert "far hub 9 about 0 90.0 ms ± 40.0 ms right" in squeezed
    assert "leaf hub 9 – – not known not known" in squeezed
    assert "it takes heartbeats of both links" in " ".join(squeezed)
    assert "hub edge 1.50 ms not known" in squeezed


@pytest.mark.parametrize(
    ("direction", "expected"), [("worse", "Trend: worse"), ("better", "Trend: better"), ("same", "Trend: no change")]
)
def test_the_trend_names_the_nodes_that_changed(direction: str, expected: str) -> None:
    """With what they lacked before and now; a time less than nothing is so by the uncertainty of the clocks."""
    changed = NodeTrend.model_validate(
        {"node": "edge", "missing_before": 3, "missing": 40, "complete_percent_before": 99.0, "complete_percent": 90.0}
        | {"p99_us_before": -1_000, "p99_us": 9_000, "direction": direction}
    )
    trend = Trend.model_validate(
        {"against": "first_half", "before_begin": BEGIN, "before_end": BEGIN, "begin": BEGIN, "end": END}
        | {"direction": direction, "nodes": (changed,)}
    )
    text = on_terminal(answered(node(), answer="complete", trend=trend), width=200)
    assert f"{expected} (second half of the time against the first)" in text
    line = f"edge {direction} 3 40 about 0 9.00 ms"
    assert (line in " ".join(text.replace("\u00a0", " ").split())) == (direction != "same")


def test_the_trend_against_many_reports_tells_shares() -> None:
    """What 30 days lacked is no figure to compare with what an hour lacks."""
    changed = NodeTrend.model_validate(
        {"node": "edge", "missing_before": 300, "missing": 40, "complete_percent_before": 99.95}
        | {"complete_percent": 90.0, "p99_us_before": None, "p99_us": None, "direction": "worse"}
    )
    trend = Trend.model_validate(
        {"against": "history", "before_begin": BEGIN, "before_end": BEGIN, "begin": BEGIN, "end": END}
        | {"direction": "worse", "nodes": (changed,)}
    )
    text = on_terminal(answered(node(), answer="complete", trend=trend), width=200)
    assert "Trend: worse (against earlier reports, " in text
    assert "edge worse 99.95 % 90.0 %" in " ".join(text.split())
    assert "300" not in text


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_answer_is_cut_at_any_width(width: int) -> None:
    """However narrow, the figures are whole and no line is longer than the terminal."""
    text = on_terminal(answered(outage(), steady_loss(), answer="not_complete", topic="plant/hot"), width=width)
    for figure in ("≥ 91.6 %", "≥ 1,648", "98.1 %", "834", "going on", "02:41:00"):
        assert figure in text
    assert max(map(len, text.splitlines())) <= width


def test_markdown_holds_the_answers_and_nothing_of_strangers() -> None:
    """Topics can hold what Markdown or HTML would take for a link, a table or a tag."""
    text = render_markdown(answered(steady_loss(), answer="not_complete", topic=f"{HOSTILE}|[x](y)`@all`"))
    assert text.startswith("**NOT COMPLETE** the one secondary lacks updates")
    assert "| lossy | 98.1 % | 834 | 02:40:04 | still going on | unexplained 834 | plant/hot 430, plant/b 12 |" in text
    row = next(line for line in text.splitlines() if "alert" in line)
    for raw in ("<script", "http://", "\x1b"):
        assert raw not in row
    assert r"\|\[x\](y)\`\@all\`" in row
    assert row.replace("\\|", "").count("|") == 7
    assert "&lt;script&gt;" in row
    assert "**Failed**" not in text
    with pytest.raises(ReportError, match="traffic has no answers"):
        render_markdown(section_report("traffic"))


def test_markdown_says_whether_the_threshold_was_met() -> None:
    """As the terminal and the page do."""
    verdict = Verdict(fail_under_percent=99.99, lowest_percent=98.1, passed=False, because="lowest: lossy/up #")
    made = answered(steady_loss(), answer="not_complete").model_copy(update={"verdict": verdict})
    text = render_markdown(made).replace("\u00a0", " ")
    assert "\n\n**Failed**: lowest: lossy/up #: 98.1 %; asked for at least 99.99 %\n\n" in text
    passed = verdict.model_copy(update={"passed": True})
    assert "**Passed**: lowest" in render_markdown(made.model_copy(update={"verdict": passed}))


def test_the_page_begins_with_the_answers() -> None:
    """The verdict, the nodes, lag and trend stand above everything else; bounds are bounds, in their tone."""
    page = render_page(answered(outage(), steady_loss(), answer="not_complete", topic=HOSTILE)).replace("\u00a0", " ")
    assert page.index("NOT COMPLETE") < page.index("Did every secondary get everything?") < page.index("What to do")
    assert page.index("What to do") < page.index("Missing updates by topic") < page.index("Updates, one by one")
    assert '<td class="number fair" data-name="complete">≥ 91.6 %</td>' in page
    assert "<script>alert" not in page
