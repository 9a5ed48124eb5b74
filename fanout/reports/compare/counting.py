"""Updates without a stamp, counted against the reference's log: those that each target has, and those that it lacks.

Equal values of a topic cannot be told apart, and need not be. MQTT 5 sends nothing twice within a Network Connection
[MQTT-4.4.0-1], so a node that logged a value as often as the reference got all of its updates. Each row of a node gives
an interval of time in which the reference logged its update. Intervals that overlap make a stretch. An update of one
stretch is of no other, so each is counted by itself, and its n-th row is paired with the n-th of the reference.
Whatever the counts do not settle is unsure, never missing.

The result is rows with an identity, that of the reference's row, which go through the same queries as stamped ones.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from fanout.replog.files.schema import FLAG_DUP
from fanout.reports.read.rows import conflated, explode_targets, in_gap, is_live, source_rows, target_rows, whole
from fanout.reports.read.schemas import PHASE_UNSURE, SIDE_NODE, SIDE_REFERENCE
from fanout.reports.read.scope import NEVER_US, Scope

__all__ = ["INTERVALS", "both_sides", "identify", "reference_rows", "unique_differences"]

INTERVALS: Final = "target int, window bigint, least_us bigint, most_us bigint, sooner_us bigint, later_us bigint"
"""Least and greatest delay of a target after the reference, in each window of its time.

Of a row with DUP set sooner_us less, and later_us more: so long its update may have waited for a connection.
"""

_KEY: Final = ("target", "digest")
_NAMED: Final = ("primary", "epoch", "sequence", "at_us")
_REFERENCE, _NODE, _COPY = SIDE_REFERENCE, SIDE_NODE, 2
_NEAR_US: Final = 500_000
"""So much later than all near it in time an update may be, and its value is still counted with those before."""


def reference_rows(updates: DataFrame, *, scope: Scope) -> DataFrame:
    """Return the updates that the reference logged for the groups without stamps, with an identity.

    Columns of `updates`, `group` and `side`. The position in the log is the sequence of what has no stamp. In a union
    the log that saw a value most often decides its number.
    """
    groups = [group.id for group in scope.groups if group.basis == "unstamped"]
    rows = source_rows(updates, scope=scope).where(sf.col("group").isin(groups) & is_live())
    if scope.reference.kind == "union":
        rows = _of_one_source(rows)
    return rows.withColumns(
        {
            "stamp_epoch": sf.when(sf.col("sequence").isNull(), sf.col("node_epoch")).otherwise(sf.col("stamp_epoch")),
            "stamp_primary": sf.coalesce("stamp_primary", "node"),
            "sequence": sf.coalesce("sequence", "log_pos"),
            "origin": sf.lit(None).cast("timestamp"),
            "side": sf.lit(SIDE_REFERENCE),
        }
    )


def both_sides(updates: DataFrame, *, scope: Scope) -> DataFrame:
    """Return the rows of the reference by target without stamps, and those of the nodes, in the same columns.

    Args:
        updates: The table.
        scope: The scope of the report.

    Returns:
        Columns target, digest, side, at_us, topic, primary, epoch, sequence, change, phase, flags. The identity of a
        node's row is its place in its own log.
    """
    targets = scope.targets_of("unstamped")
    common = ("target", "digest", sf.unix_micros("applied").alias("at_us"), "topic", "change", "phase", "flags")
    seen = explode_targets(reference_rows(updates, scope=scope), scope=scope, targets=targets).select(
        *common,
        sf.lit(_REFERENCE).alias("side"),
        sf.col("stamp_primary").alias("primary"),
        sf.col("stamp_epoch").alias("epoch"),
        "sequence",
    )
    logged = target_rows(updates, scope=scope, targets=targets).select(
        *common,
        sf.when(is_live() | conflated(), _NODE).otherwise(_COPY).alias("side"),
        sf.lit("").alias("primary"),
        sf.col("node_epoch").alias("epoch"),
        sf.col("log_pos").alias("sequence"),
    )
    return seen.unionByName(logged)


def unique_differences(rows: DataFrame, *, width_us: int) -> DataFrame:
    """Return the delay of each target after the reference, for values that both saw once.

    Args:
        rows: `both_sides`.
        width_us: The width of the windows of the target's time.

    Returns:
        Columns target, window, updates, least_us, median_us, most_us.
    """
    at_us = sf.col("at_us")
    once = (
        rows.where(sf.col("side") != _COPY)
        .groupBy(*_KEY)
        .agg(
            sf.count_if(_is(_REFERENCE)).alias("seen"),
            sf.count_if(_is(_NODE)).alias("got"),
            sf.max(sf.when(_is(_REFERENCE), at_us)).alias("seen_us"),
            sf.max(sf.when(_is(_NODE), at_us)).alias("got_us"),
        )
        .where((sf.col("seen") == 1) & (sf.col("got") == 1))
    )
    later_us = sf.col("got_us") - sf.col("seen_us")
    return once.groupBy("target", sf.expr(f"got_us div {width_us}").alias("window")).agg(
        sf.count(sf.lit(1)).alias("updates"),
        sf.min(later_us).alias("least_us"),
        sf.percentile_approx(later_us, 0.5).cast("long").alias("median_us"),
        sf.max(later_us).alias("most_us"),
    )


def identify(
    rows: DataFrame,
    *,
    intervals: DataFrame,
    width_us: int,
    places: DataFrame,
    spans: DataFrame,
    gaps: bool,
    margin_us: int,
    proves: bool,
) -> DataFrame:
    """Return the rows of nodes with the identity of the reference's row that each is of.

    Args:
        rows: `both_sides`.
        intervals: Columns `INTERVALS`, for each window in which a target logged anything.
        width_us: The width of those windows.
        places: (target, node, link, selector); `target` is the key.
        spans: `rows.targets_frame`, of the reference's spans.
        gaps: True if a target has gaps; without any, no row is asked whether it lies in one.
        margin_us: Rows so near to an end of the reference's log are not said to be absent from it.
        proves: True if the reference is one log; updates that a union lacks, and delays of its nodes, are not reported.

    Returns:
        Rows of `updates` in the columns that the comparison by identity and the lag read. `origin` is the time at which
        the reference logged the update, and null where its pair is not known for sure. What the reference lacks has
        an identity of its own. Rows of the phase `PHASE_UNSURE` name updates of which nobody knows whether they came.
    """
    rows = _with_due(rows, spans, gaps=gaps)
    values = rows.groupBy(*_KEY).agg(
        sf.count_if(_is(_NODE)).alias("nodes"), *(count.alias(name) for name, count in _counts().items())
    )
    plain = (sf.col("seen") == 1) & (sf.col("nodes") <= 1)
    stretches = _stretches(
        _with_interval(
            rows.join(values.where(~plain).select(*_KEY), on=list(_KEY), how="left_semi"), intervals, width_us=width_us
        )
    )
    found = _plain(rows.join(values.where(plain).drop("nodes"), on=list(_KEY), how="inner")).unionByName(
        _across_stretches(_judged(_paired(stretches)))
    )
    side = sf.col("side")
    is_timed = sf.col("timed") & sf.col("matched") & sf.lit(proves)
    extra = sf.col("extra") & sf.col("surely_seen") & sf.lit(proves)
    named = ("primary", "epoch", "sequence")
    own = {name: sf.col(name) for name in named}
    theirs = {
        name: sf.when(sf.col("seen") == 1, sf.col(f"only_{name}")).otherwise(sf.col(f"pair_{name}")) for name in named
    }
    keeps_own = (side == _REFERENCE) | extra
    identity = {name: sf.when(keeps_own, own[name]).otherwise(theirs[name]) for name in named}
    kept = (
        sf.when(side == _REFERENCE, sf.col("unsure") & sf.col("due"))
        .when(side == _COPY, sf.col("seen") == 1)
        .otherwise(sf.col("matched") | extra | (sf.col("weak") & (sf.col("seen") == 1)))
    )
    margins = spans.select(
        "target",
        (sf.col("reference_from_us") + margin_us).alias("from_us"),
        (sf.col("reference_until_us") - margin_us).alias("until_us"),
    )
    return (
        found.join(sf.broadcast(margins), on="target", how="inner")
        .withColumn("surely_seen", (sf.col("start_us") > sf.col("from_us")) & (sf.col("end_us") < sf.col("until_us")))
        .where(kept)
        .join(sf.broadcast(places), on="target", how="inner")
        .select(
            *("node", "link", "selector", "topic", "change", "flags"),
            sf.when(side == _REFERENCE, PHASE_UNSURE).otherwise(sf.col("phase")).cast("byte").alias("phase"),
            identity["primary"].alias("stamp_primary"),
            identity["epoch"].alias("stamp_epoch"),
            identity["sequence"].alias("sequence"),
            sf.timestamp_micros(sf.when(is_timed, sf.col("pair_at_us"))).alias("origin"),
            sf.timestamp_micros("at_us").alias("applied"),
            sf.lit(SIDE_NODE).alias("side"),
        )
    )


def _of_one_source(rows: DataFrame) -> DataFrame:
    """Return, of each value of a group, the rows of the log that saw it most often."""
    value = ("group", "digest")
    times = sf.count(sf.lit(1)).over(whole(*value, "node", "link"))
    most = sf.max(sf.struct("times", "node", "link")).over(whole(*value))
    found = rows.withColumn("times", times).withColumn("most", most)
    is_of_it = (sf.col("node") == sf.col("most.node")) & (sf.col("link") == sf.col("most.link"))
    return found.where(is_of_it).drop("times", "most")


def _with_due(rows: DataFrame, spans: DataFrame, *, gaps: bool) -> DataFrame:
    """Return the rows with `due` and `weak`.

    A row of the reference is due in the target's span. A row is weak if it may repeat another update (DUP set). A row
    of the reference is also weak if the target need not have it, or could not log it.
    """
    at_us, dup = sf.col("at_us"), sf.col("flags").bitwiseAND(FLAG_DUP) != 0
    due = _is(_REFERENCE) & (at_us > sf.col("covered_from_us")) & (at_us <= sf.col("settled_until_us"))
    known = ~in_gap(at_us) if gaps else sf.lit(True)
    spans = spans.select("target", "covered_from_us", "settled_until_us", "gaps")
    return (
        rows.join(sf.broadcast(spans), on="target", how="inner")
        .withColumns({"due": due, "weak": dup | (_is(_REFERENCE) & ~(due & known))})
        .drop("covered_from_us", "settled_until_us", "gaps")
    )


def _with_interval(rows: DataFrame, intervals: DataFrame, *, width_us: int) -> DataFrame:
    """Return the rows with the interval of the reference's time in which each was logged there: start_us, end_us."""
    at_us = sf.col("at_us")
    of_node = sf.when(~_is(_REFERENCE), at_us)
    least_us, most_us = (
        sf.when(sf.col("weak"), sf.col(usual) + sign * sf.col(waited)).otherwise(sf.col(usual))
        for usual, sign, waited in (("least_us", -1, "sooner_us"), ("most_us", 1, "later_us"))
    )
    return (
        rows.withColumn("window", sf.expr(f"at_us div {width_us}"))
        .join(sf.broadcast(intervals), on=["target", "window"], how="left")
        .withColumns(
            {
                "start_us": sf.coalesce(of_node - sf.coalesce(most_us, sf.lit(NEVER_US)), at_us),
                "end_us": sf.coalesce(of_node - sf.coalesce(least_us, sf.lit(-NEVER_US)), at_us),
            }
        )
        .drop("window", "least_us", "most_us", "sooner_us", "later_us")
    )


def _stretches(rows: DataFrame) -> DataFrame:
    """Return the rows with `stretch`: intervals of one value that overlap have the same one.

    A value that the reference saw once has one stretch, whenever its rows came. Stretches that are near to each other
    become one if it has as many rows of either side, because an update that is a little late lies in the next.
    """
    in_order = Window.partitionBy(*_KEY).orderBy("start_us", "side")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    everywhere = in_order.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    begins = sf.col("start_us") > sf.col("reached_us")
    near = whole(*_KEY, "near")
    seen, got = (sf.count_if(_is(side)).over(near) for side in (_REFERENCE, _NODE))
    weak = sf.count_if(sf.col("weak") & ~_is(_COPY)).over(near)
    stretch = sf.when(sf.col("in_all") == 1, sf.lit(0).cast("long")).when(
        (seen == got) & (weak == 0), sf.min("stretch").over(near)
    )
    return (
        rows.withColumns(
            {
                "reached_us": sf.max("end_us").over(before),
                "in_all": sf.count_if(_is(_REFERENCE)).over(everywhere),
            }
        )
        .withColumns(
            {
                "stretch": sf.count_if(begins).over(so_far),
                "near": sf.count_if(sf.col("start_us") > sf.col("reached_us") + _NEAR_US).over(so_far),
            }
        )
        .withColumn("stretch", stretch.otherwise(sf.col("stretch")))
        .drop("reached_us", "in_all", "near")
    )


def _paired(rows: DataFrame) -> DataFrame:
    """Return the rows with the counts of their stretch, their number in it, and what the row of that number says.

    Weak rows of the reference come first and weak ones of a node last: so what is said of the others is sure.
    """
    stretch = (*_KEY, "stretch")
    late = sf.when(_is(_REFERENCE), ~sf.col("weak")).otherwise(sf.col("weak"))
    numbered = Window.partitionBy(*stretch, "side").orderBy(late, "at_us", "epoch", "sequence")
    pairs = Window.partitionBy(*stretch).orderBy("number", "side")
    is_pair = sf.lag("side").over(pairs) == _REFERENCE
    return (
        rows.withColumn("number", sf.row_number().over(numbered))
        .withColumns({name: count.over(whole(*stretch)) for name, count in _counts().items()})
        .withColumns({f"pair_{name}": sf.when(_is(_NODE) & is_pair, sf.lag(name).over(pairs)) for name in _NAMED})
        .drop("stretch")
    )


def _plain(rows: DataFrame) -> DataFrame:
    """Return the rows of values that either side saw once, with the columns of `_across_stretches`.

    Most values are such. Each is one stretch of one pair, so no row has to be put in order.
    """
    judged = _judged(
        rows.withColumn("number", sf.lit(1)).withColumns(
            {f"pair_{name}": sf.when(sf.lit(False), sf.col(name)) for name in _NAMED}
        )
    )
    unsure = sf.col("lost") & ~sf.col("surely")
    return judged.withColumns({"unsure": unsure, "start_us": sf.col("at_us"), "end_us": sf.col("at_us")})


def _counts() -> dict[str, Column]:
    """Return the counts of a stretch, and what is known of its only row of the reference if it has one."""
    return {
        "seen": sf.count_if(_is(_REFERENCE)),
        "got": sf.count_if(_is(_NODE) & ~sf.col("weak")),
        "got_again": sf.count_if(_is(_NODE) & sf.col("weak")),
        "seen_weak": sf.count_if(_is(_REFERENCE) & sf.col("weak")),
        "seen_again": sf.count_if(_is(_REFERENCE) & (sf.col("flags").bitwiseAND(FLAG_DUP) != 0)),
        **{f"only_{name}": sf.max(sf.when(_is(_REFERENCE), sf.col(name))) for name in _NAMED},
    }


def _judged(rows: DataFrame) -> DataFrame:
    """Return the rows with `matched`, `timed`, `lost`, `surely` and `extra`, each by its own stretch.

    A row of the reference is lost for sure only if weak rows of neither side explain the difference.
    """
    number, seen, got = sf.col("number"), sf.col("seen"), sf.col("got")
    node, again = _is(_NODE), sf.col("got_again")
    alone = (seen == 1) & (got + again > 0)
    even = (seen == got) & (again == 0) & ((sf.col("seen_weak") == 0) | (sf.col("seen_weak") == seen))
    return rows.withColumns(
        {
            "matched": node & (number <= seen) & (~sf.col("weak") | alone),
            "timed": even | (alone & ~sf.col("weak")),
            "pair_at_us": sf.when(seen == 1, sf.col("only_at_us")).otherwise(sf.col("pair_at_us")),
            "lost": _is(_REFERENCE) & (number > got) & ~alone,
            "surely": ~sf.col("weak") & (number - sf.col("seen_weak") > got + again),
            "extra": node & ~sf.col("weak") & (number > seen),
        }
    )


def _across_stretches(rows: DataFrame) -> DataFrame:
    """Return the rows with `unsure`, and `extra` only where no stretch of the value lacks an update.

    An update that came much later than its neighbours is an extra one in another stretch, where a second copy at the
    reference may hide it.
    """
    lost, surely, number, seen = (sf.col(name) for name in ("lost", "surely", "number", "seen"))
    is_stray = _is(_NODE) & ~sf.col("weak") & (number > seen - sf.col("seen_again"))
    return (
        rows.withColumns(
            {
                "strays": sf.max(is_stray).over(whole(*_KEY)),
                "lacking": sf.max(lost & surely & sf.col("due")).over(whole(*_KEY)),
            }
        )
        .withColumns({"unsure": lost & (~surely | sf.col("strays")), "extra": sf.col("extra") & ~sf.col("lacking")})
        .drop("strays", "lacking")
    )


def _is(side: int) -> Column:
    return sf.col("side") == side
