"""The selector that comes closest to a topic outside all."""

from __future__ import annotations

import pytest

from fanout.config import Address, LinkConfig
from fanout.node.explain.nearest_selector import nearest_selector
from fanout.selection import Selector


def link(name: str, *selectors: Selector) -> LinkConfig:
    """Return a link with these selectors."""
    return LinkConfig(name=name, primaries=(Address("mqtt", "127.0.0.1", 1883),), selectors=selectors)


LINKS = (
    link("plant", Selector("plant/+/state", prefix="site/"), Selector("plant/hall/#", exclude=("plant/hall/debug/#",))),
    link("office", Selector("office/+/door"), Selector("#", prefix="all/")),
)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("plant/hall/debug/1", ("plant", "plant/hall/#", "plant/hall/debug/#")),
        ("site/plant/hall/alarm", ("plant", "site/plant/+/state", None)),
        ("plant/yard/1", ("plant", "plant/hall/#", None)),
        ("office/3/window", ("office", "office/+/door", None)),
        ("all/fanout/control/x", ("office", "all/#", "fanout/control/#")),
        ("elsewhere", ("plant", "site/plant/+/state", None)),
    ],
)
def test_nearest_selector_is_the_one_with_the_most_levels_in_common(
    topic: str, expected: tuple[str, str, str | None]
) -> None:
    """An exclude and the control topic come first, because only they keep the topic out."""
    found = nearest_selector(topic, LINKS)
    assert found is not None
    assert (found.link, found.filter, found.exclude) == expected


def test_without_selectors_nothing_is_near() -> None:
    """A `fanout primary` has no links."""
    assert nearest_selector("plant/1", ()) is None
