"""Clients of a node, as an operator asks for them."""

from __future__ import annotations

import pytest

from fanout.errors import RequestRefused
from fanout.node.clients import ClientsView
from fanout.runtime.slices import Slices
from fanout.runtime.system_clock import SystemClock
from fanout.server.client.client_list import ClientQuery


async def test_a_filter_that_cannot_be_compared_is_refused() -> None:
    """One with more levels than a selector may have; a shorter one is answered, also by a node without clients."""
    view = ClientsView(None, node="edge-1", clock=SystemClock(), slices=Slices(slice_s=0.002, share=0.5))
    with pytest.raises(RequestRefused, match="filter cannot be compared"):
        await view.list(ClientQuery(), topic_filter="a/" * 300 + "#")
    assert (await view.list(ClientQuery(), topic_filter="a/#")).clients == ()
