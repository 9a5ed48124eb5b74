"""Tests of the markers that have passed."""

from __future__ import annotations

from fanout.durable.moving.passed_markers import PassedMarkers


async def test_a_marker_is_its_members_only() -> None:
    """Two members that started in the same nanosecond number their markers alike: only the member's own counts."""
    passed = PassedMarkers()
    passed.note("plant", "edge-2", "1700001000000000000 19")
    assert not await passed.wait("edge-1", {"plant": "1700001000000000000 19"}, timeout_s=0.0)
    assert await passed.wait("edge-2", {"plant": "1700001000000000000 19"}, timeout_s=0.0)
    assert not await passed.wait("edge-2", {}, timeout_s=0.0)
