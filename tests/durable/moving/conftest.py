"""Members that call each other in one process have virtual time: nothing depends on the speed of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from bench.simulate.loop import SimulatedLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test with an event loop whose time jumps to the next timer when nothing is ready."""
    return {"simulated": SimulatedLoop}
