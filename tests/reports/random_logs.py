"""Small random logs of a primary and many secondaries with every fault that a report has to count."""

from __future__ import annotations

import json
import random
from datetime import timedelta

from fanout.replica.update import ChangeKind, Phase
from tests.reports.logs import SECOND, T0, NodeLog, Row, at, digest_of, selector
from tests.reports.oracle import micros, selected

FIRST_SEQUENCE = 2**60 - 5
"""Above 2**53, so that arithmetic in floating point would go wrong; and across a boundary of 64."""

TOPICS = (
    "plant/a/temperature",
    "plant/a/pressure",
    "plant/b/temperature",
    "plant",
    "plant/",
    "plant/a",
    "plant/debug/x",
    "site/1/+literal",
    "site/1/é.x*[y",
    "$SYS/uptime",
    "/lead",
    "fanout/control/edge-01/up",
    "fanout/control",
)

CONFIGURATIONS = (
    (selector("plant/#", "plant/debug/#"), selector("site/+/#")),
    (selector("+/+/temperature"),),
    (selector("#", "plant/+/pressure"),),
    (selector("plant/a/temperature"), selector("plant/b/+"), selector("/+")),
    (selector("$SYS/#"), selector("+")),
)


def random_hub(rng: random.Random, *, updates: int) -> NodeLog:
    """Return a primary's log of two processes, over about 60 seconds."""
    hub = NodeLog("hub", "primary")
    hub.start(at(0))
    sequence = FIRST_SEQUENCE
    for number in range(updates):
        now = at(1 + 58 * number / updates)
        if number == updates * 2 // 3:
            hub.restart(now)
            hub.start(now)
            sequence = 1
        # Some topics change so rarely that a loss on them is not made up for before the end.
        topic = rng.choice(TOPICS) if rng.random() < 0.7 else f"plant/rare/{rng.randrange(80)}"
        payload = rng.choice(("", "1", "2", "3", f"{number}"))
        retain = rng.random() < 0.9
        change = ChangeKind.REPLACED if payload else ChangeKind.REMOVED
        hub.publish(now, sequence, topic, payload, retain=retain, change=int(change if retain else ChangeKind.MESSAGE))
        sequence += 1
    hub.event("heartbeat", at(60))
    return hub


def random_reference(rng: random.Random, kind: str, hub: NodeLog) -> NodeLog:
    """Return what a reference of another kind would have logged of a primary's updates, with a gap in its log.

    Args:
        rng: Where chance comes from.
        kind: `primary`, `first_tier` (which has the primary's name, since it stamps in its place), or `tap`.
        hub: The primary.
    """
    found = hub
    link = {"name": "up", "primary": ["mqtt://hub"], "selectors": [selector("#"), selector("$SYS/#")]}
    if kind != "primary":
        found = NodeLog("hub", "secondary") if kind == "first_tier" else NodeLog("tap", "tap")
        found.start(at(0), link)
        found.ready(at(0.5), "up", "#", "$SYS/#", took_us=1000)
        for row in hub.updates:
            if row["node_epoch"] != hub.updates[0]["node_epoch"] and found.node_epoch == T0 and kind == "first_tier":
                found.restart(row["node_epoch"])
                found.start(row["node_epoch"], link)
                found.ready(row["node_epoch"], "up", "#", "$SYS/#", took_us=1000)
            own = "$SYS/#" if row["topic"].startswith("$") else "#"
            found.apply(row, link="up", selector=own, delay_us=0 if kind == "first_tier" else rng.randrange(100, 2_000))
    # In the first process: what it lacks there says nothing of final values.
    of_first = [row for row in found.updates if row["stamp_epoch"] == hub.updates[0]["stamp_epoch"]]
    begin = rng.randrange(10, len(of_first) - 80)
    lost = of_first[begin : begin + rng.randrange(1, 60)]
    found.updates = [row for row in found.updates if not any(row is one for one in lost)]
    found.event("heartbeat", at(60))
    found.gap(
        at(60),
        link=lost[0]["link"],
        rows=len(lost),
        node_epoch=lost[0]["node_epoch"],
        first_log_pos=lost[0]["log_pos"],
        last_log_pos=lost[-1]["log_pos"],
        first_us=micros(lost[0]["applied"]),
        last_us=micros(lost[-1]["applied"]),
    )
    return found


def random_secondary(rng: random.Random, number: int, hub: NodeLog) -> NodeLog:
    """Return the log of a secondary that had some of: loss, copies, a cut, a restart, a gap, another clock."""
    node = NodeLog(f"edge-{number:02}")
    selectors = rng.choice(CONFIGURATIONS)
    link = {"name": "up", "primary": ["mqtt://hub"], "selectors": list(selectors)}
    filters = [s["filter"] for s in selectors]
    offset = rng.choice((0, 0, 3 * SECOND, -2 * SECOND))
    node.start(at(0.5) + offset, link)
    ready = at(rng.choice((0.9, 5, 20)))
    if number % 11 == 10:
        return node  # never connected
    cut = (at(rng.uniform(20, 40)), at(rng.uniform(40, 50))) if rng.random() < 0.6 else (0, 0)
    restarts, stops, gap = rng.random() < 0.4, rng.random() < 0.3, rng.random() < 0.3
    loss = rng.choice((0, 0.02, 0.2))
    done = resumed = heard = False
    held: dict[str, Row] = {}
    for row in hub.updates:
        now = micros(row["origin"])
        chosen = [s for s in selectors if selected(s, row["topic"])]
        if now > ready and not done:
            _snapshot(rng, node, held, offset, now)
            node.ready(ready + offset, "up", *filters)
            done = True
        if done and not heard and 0 < cut[0] < now and not resumed and number % 3:
            heard = True
            node.event("heartbeat", cut[0] + offset, link="up", lag_us=rng.randrange(500_000))
        if done and rng.random() < 0.01:
            _audit(rng, node, now + offset)
        if done and cut[0] and now > cut[1] and not resumed:
            resumed = True
            if gap:
                node.gap(
                    cut[1] + offset, link="up", rows=0, first_us=cut[0] + offset, last_us=cut[0] + 3 * SECOND + offset
                )
            if restarts:
                node.restart(cut[1] + offset)
                node.start(cut[1] + offset, link)
            elif number % 5:
                node.event("tear_down", cut[1] + offset, link="up")
            node.link_epoch += number % 5 > 0
            _snapshot(rng, node, held, offset, now)
            node.ready(cut[1] + offset, "up", *filters)
        if chosen:
            if row["change"] == ChangeKind.REPLACED:
                held[row["topic"]] = row | {"selector": chosen[0]["filter"]}
            elif row["change"] == ChangeKind.REMOVED:
                held.pop(row["topic"], None)
        if not done or not chosen or cut[0] < now <= cut[1] or rng.random() < loss:
            continue
        _deliver(rng, node, row, chosen[0]["filter"], offset)
    if stops:
        node.event("stop", at(rng.uniform(52, 61)) + offset)
    return node


def _audit(rng: random.Random, node: NodeLog, at_us: int) -> None:
    found = {name: int(rng.random() < 0.2) for name in ("changed", "removed", "kept")}
    node.event("audit", at_us, link="up", detail=json.dumps(found | {"checked": 9, "loss": rng.random() < 0.1}))


def _deliver(rng: random.Random, node: NodeLog, row: Row, topic_filter: str, offset: int) -> None:
    delay = rng.randrange(200, 20_000) + offset
    flags = 4 if rng.random() < 0.03 else 0
    if rng.random() < 0.03:
        node.apply(row, link="up", selector=topic_filter, delay_us=delay, flags=8, change=int(ChangeKind.MESSAGE))
        return
    change = row["change"] if rng.random() < 0.97 else int(ChangeKind.REFUSED)
    digest = row["digest"] if rng.random() < 0.98 else digest_of(row["topic"], "corrupted")
    node.apply(row, link="up", selector=topic_filter, delay_us=delay, flags=flags, change=change, digest=digest)
    while rng.random() < 0.05:
        node.apply(row, link="up", selector=topic_filter, delay_us=delay + 500, flags=3)


def _snapshot(rng: random.Random, node: NodeLog, held: dict[str, Row], offset: int, now: int) -> None:
    for row in held.values():
        if rng.random() < 0.1:
            continue
        copy = node.apply(
            row, link="up", selector=row["selector"], phase=int(Phase.SNAPSHOT), change=int(ChangeKind.NEW)
        )
        copy["applied"] = row["origin"] + timedelta(microseconds=now - micros(row["origin"]) + offset)
        if rng.random() < 0.1:
            node.apply(
                copy, link="up", selector=copy["selector"], phase=int(Phase.AUDIT), change=int(ChangeKind.UNCHANGED)
            )
