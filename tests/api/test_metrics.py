"""The metrics: complete, documented, bounded, absent when unknown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from fanout.api.metrics import METRICS, encode_metrics, process_metrics
from fanout.api.models import LINK_STATES
from tests.api.stand_in import StandInNode, live_link, ready_node, syncing_node

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
METRICS_PAGES = "".join((REFERENCE / name).read_text() for name in ("metrics.md", "metrics-links.md"))


def exposition(node: StandInNode, encode: Callable[[Collector], bytes]) -> bytes:
    """Return the text of all metrics."""
    steps = encode_metrics(node, process_metrics(), encode=encode)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return bytes(ended.value)


def scrape(node: StandInNode) -> dict[str, dict[tuple[str, ...], float]]:
    """Return sample name -> label values (sorted by label name) -> value."""
    samples: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(exposition(node, generate_latest).decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def test_every_metric_has_a_value_on_a_full_node() -> None:
    """A node with a link, a server and a log exposes each metric of the table, and no other."""
    names = {name for name in scrape(ready_node()) if name.startswith("fanout_")}
    assert names == {spec.name for spec in METRICS}


def test_values_come_from_the_documents() -> None:
    """Counters, gauges, flags and times are those of status and lag."""
    samples = scrape(ready_node())
    assert samples["fanout_node_info"] == {("edge-1", "secondary", "0.1.0"): 1}
    assert samples["fanout_link_topics"] == {("plant",): 200_000}
    assert samples["fanout_link_hops"] == {("plant",): 2}
    assert samples["fanout_link_items_behind"] == {("plant",): 0}
    assert samples["fanout_link_received_total"] == {("plant",): 201_234}
    assert samples["fanout_link_lag_seconds"] == {("plant",): 0.0041}
    assert samples["fanout_link_state_start_time_seconds"] == {("plant",): 1_763_712_000.25}
    assert samples["fanout_link_stalls_total"] == {("plant",): 4}
    assert samples["fanout_link_audit_end_time_seconds"] == {("plant",): 1_763_712_300.25}
    assert samples["fanout_selector_unfit_total"] == {("plant", "content", "plant/#"): 21}
    assert samples["fanout_selector_complete"] == {("marker", "plant", "plant/#"): 1}
    assert samples["fanout_server_dropped_total"] == {("queue_full",): 4, ("expired",): 1}
    assert samples["fanout_server_limits_reached_total"] == {("connections_max",): 5, ("connect_timeout_s",): 6}
    assert samples["fanout_server_entry_faults_total"] == {("tls",): 7}
    assert samples["fanout_server_ended_total"] == {("malformed_packet",): 8}
    assert samples["fanout_access_refused_total"] == {("not_authorized",): 2}
    assert samples["fanout_access_users"] == {(): 10}
    assert samples["fanout_log_last_sync_time_seconds"] == {(): 1_763_712_000.25}
    assert samples["fanout_archive_waiting_files"] == {(): 2}
    assert samples["fanout_archive_oldest_waiting_seconds"] == {(): 31.5}
    assert samples["fanout_http_connections"] == {(): 2}
    assert samples["fanout_pool_members_reachable"] == {(): 2}
    assert samples["fanout_pool_ask_failures_total"] == {("timeout",): 7}
    assert samples["fanout_pool_refused_total"] == {("token",): 5}
    assert samples["fanout_pool_members_equal"] == {(): 2}
    assert samples["fanout_pool_repairs_total"] == {(): 3}
    assert samples["fanout_pool_fenced"] == {(): 1}
    assert samples["fanout_pool_fences_total"] == {(): 2}
    assert samples["fanout_http_closed_total"] == {("room",): 3}
    assert samples["fanout_limit"] == {("server.connections_max",): 10_000}


def test_state_is_one_of_all_states() -> None:
    """Each link shows every state, exactly one of them as 1."""
    states = scrape(syncing_node())["fanout_link_state"]
    assert {state for _, state in states} == set(LINK_STATES)
    assert [labels for labels, value in states.items() if value] == [
        ("office", "live"),
        ("plant", "snapshot"),
    ]


def test_unknown_is_absent() -> None:
    """A lag, a snapshot time and a sync time that are not known have no sample."""
    node = syncing_node()
    node.heartbeat = (None, None, 5.0)
    assert node.log is not None
    node.log = node.log.model_copy(update={"last_sync": None})
    samples = scrape(node)
    assert "fanout_link_lag_seconds" not in samples
    assert "fanout_link_heartbeat_age_seconds" not in samples
    assert samples["fanout_link_snapshot_seconds"] == {("office",): 1.875}
    assert "fanout_log_last_sync_time_seconds" not in samples


def test_a_tap_has_no_server_metrics() -> None:
    """A node that serves nobody does not claim to have no clients."""
    node = ready_node()
    node.role, node.server, node.access, node.log = "tap", None, None, None
    assert not any(name.startswith(("fanout_server_", "fanout_access_", "fanout_log_")) for name in scrape(node))


def test_alarm_shows_in_readiness_and_log() -> None:
    """The flags follow the node."""
    node = ready_node()
    node.reasons = ("draining",)
    assert node.log is not None
    node.log = node.log.model_copy(update={"alarm": "No space left on device"})
    samples = scrape(node)
    assert samples["fanout_node_ready"] == {(): 0}
    assert samples["fanout_log_alarm"] == {(): 1}


def test_names_follow_the_convention() -> None:
    """Counters and only counters end in `_total`; each metric has a HELP sentence."""
    for spec in METRICS:
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec.name
        assert spec.meaning.endswith("."), spec.name


def test_each_help_can_be_read_alone() -> None:
    """Tools show it without those of the metrics before; and units are the base units."""
    for spec in METRICS:
        assert not re.search(r"^(Their|They|Of) |\b(these|in them|such|that they)\b", spec.meaning), spec.name
        assert not re.search(r"_(ms|us|milliseconds|minutes|hours|kb|mb|kib|mib|percent)(_|$)", spec.name), spec.name


def test_openmetrics_is_what_its_own_parser_takes() -> None:
    """It is stricter than that of the text format: types, units, names of counters, the order of samples."""
    text = exposition(ready_node(), openmetrics.generate_latest).decode()
    names = {family.name for family in openmetrics_families(text)}  # type: ignore[no-untyped-call]
    assert {spec.name.removesuffix("_total") for spec in METRICS} <= names


def test_the_text_is_made_a_metric_at_a_time() -> None:
    """Others have the event loop between them."""
    assert len(list(encode_metrics(ready_node(), (), encode=generate_latest))) == 2 + len(METRICS)


def test_selector_text_is_a_safe_label() -> None:
    """A filter with quotes and backslashes does not break the exposition."""
    link = live_link('a"b\\c')
    assert scrape(StandInNode(link))["fanout_link_topics"] == {('a"b\\c',): 200_000}


def test_operations_page_explains_every_metric() -> None:
    """The tables in the pages of metrics have one row per metric, with its labels, and no row too many."""
    rows = dict(re.findall(r"^\| `(fanout_\w+?)(?:\{([\w, ]+)\})?` \|", METRICS_PAGES, re.MULTILINE))
    assert rows == {spec.name: ", ".join(spec.labels) for spec in METRICS}
