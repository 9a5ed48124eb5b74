"""The busiest topics as Prometheus text: the one metric with topics as a label, for those who scrape it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fanout.api.browse.models import TopTopics
from fanout.escaping import printable

__all__ = ["TOP_METRIC", "top_metrics"]

TOP_METRIC: Final = ("fanout_topic_messages_per_second", ("topic",))
"""Name and labels."""
_TOPIC_MAX: Final = 200


class _Top(Collector):
    def __init__(self, top: TopTopics) -> None:
        self._top = top

    def collect(self) -> Iterable[GaugeMetricFamily]:
        rates: dict[str, float] = defaultdict(float)
        for one in self._top.topics:  # what is alike after it was shortened is one series, or Prometheus takes none
            rates[printable(one.topic, length_max=_TOPIC_MAX)] += one.per_second
        name, labels = TOP_METRIC
        family = GaugeMetricFamily(name, "Messages a second of one of the busiest topics.", labels=labels)
        for topic, rate in rates.items():
            family.add_metric((topic,), rate)
        yield family


def top_metrics(top: TopTopics) -> bytes:
    """Return a series for each topic; long names are shortened, and characters that hide are escaped."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Top(top))
    return generate_latest(registry)
