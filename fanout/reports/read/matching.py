"""Topic Filters as Column expressions, exact for `+`, `#` and `$` (MQTT 5, section 4.7).

Owns the translation and nothing else. No Python function runs on an executor: a filter without `+` becomes
comparisons, one with `+` a regular expression.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from fanout.reports.read.details import Selection

__all__ = [
    "LOOKED_UP_MIN",
    "beginning",
    "filter_pattern",
    "matches_any",
    "matches_filter",
    "matches_selection",
    "plain_root",
]

LOOKED_UP_MIN: Final = 16
"""Least number of plain selections with the same number of levels that are looked up in a table; fewer are added to the
plan of each query.
"""
_PUNCTUATION = re.compile(r"[!-/:;=?@\[-`{-~]")
"""Characters that a backslash makes plain in the expressions of Java and of Rust; `\\<` begins a word in Rust."""


def matches_selection(topic: Column, selection: Selection) -> Column:
    """Return whether a selection takes a topic: its filter matches, no exclude does, and it is no control topic."""
    condition = matches_filter(topic, selection.filter)
    if selection.exclude:
        condition &= ~_any_of([matches_filter(topic, excluded) for excluded in selection.exclude])
    if selection.reaches_control:
        condition &= ~sf.startswith(topic, sf.lit(f"{selection.control_topic}/"))
    return condition


def matches_any(topic: Column, selections: Sequence[Selection]) -> Column:
    """Return whether any of the selections, of which there is at least one, takes a topic."""
    roots: dict[int, list[str]] = defaultdict(list)
    for selection in selections:
        if (root := plain_root(selection)) is not None:
            roots[root[0]].append(root[1])
    looked_up = {levels for levels, texts in roots.items() if len(texts) >= LOOKED_UP_MIN}
    others = [one for one in selections if (root := plain_root(one)) is None or root[0] not in looked_up]
    conditions = [beginning(topic, levels).isin(roots[levels]) for levels in sorted(looked_up)]
    return _any_of(conditions + [matches_selection(topic, one) for one in others])


def beginning(topic: Column, levels: int) -> Column:
    """Return the part of a topic that decides for a plain selection of so many levels, see `plain_root`."""
    return sf.substring_index(topic, "/", levels) if levels else topic


def _any_of(conditions: Sequence[Column]) -> Column:
    """Return whether one of the conditions holds: as a tree of little depth, since Spark descends by recursion."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return _any_of(conditions[:half]) | _any_of(conditions[half:])


def plain_root(selection: Selection) -> tuple[int, str] | None:
    """Return the beginning of a topic that alone decides, as for `plant/7` and `plant/#`.

    Returns:
        Number of levels of the topic that decide (0: the whole topic), and their text; None where more decides.
    """
    levels = selection.filter.split("/")
    if selection.exclude or selection.reaches_control or "+" in levels or levels == ["#"]:
        return None
    if levels[-1] == "#":
        return len(levels) - 1, "/".join(levels[:-1])
    return 0, selection.filter


def matches_filter(topic: Column, topic_filter: str) -> Column:
    """Return whether a Topic Name matches a Topic Filter."""
    levels = topic_filter.split("/")
    if "+" in levels:
        # The literal levels in front let Parquet skip row groups, which a regular expression cannot.
        root = "".join(f"{level}/" for level in levels[: levels.index("+")])
        matched = sf.rlike(topic, sf.lit(filter_pattern(topic_filter)))
        return sf.startswith(topic, sf.lit(root)) & matched if root else matched
    if levels == ["#"]:
        return ~sf.startswith(topic, sf.lit("$"))  # [MQTT-4.7.2-1]
    if levels[-1] == "#":
        parent = "/".join(levels[:-1])
        # `sport/#` also matches the parent `sport` itself (section 4.7.1.2).
        return (topic == sf.lit(parent)) | sf.startswith(topic, sf.lit(f"{parent}/"))
    return topic == sf.lit(topic_filter)


def filter_pattern(topic_filter: str) -> str:
    """Return a regular expression, of Java and of Rust, that finds exactly the matching Topic Names."""
    levels = topic_filter.split("/")
    pattern = "^"
    for index, level in enumerate(levels):
        if index == 0 and level in ("+", "#"):
            # No topic that begins with $ [MQTT-4.7.2-1]; the level may be empty.
            pattern += "(?:[^$/][^/]*)?" if level == "+" else "(?:[^$].*)?"
            continue
        if level == "#":
            # The parent level matches too, so the separator belongs to what may be absent.
            pattern += "(?:/.*)?" if index else ".*"
            break
        pattern += "/" if index else ""
        pattern += "[^/]*" if level == "+" else _PUNCTUATION.sub(r"\\\g<0>", level)
    # `\z` is the very end; `$` would also accept a line feed before it.
    return f"(?s){pattern}\\z"
