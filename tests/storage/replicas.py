"""Replicas whose values are in a file only, for tests that have no event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from fanout.replica.store import Replica
from fanout.storage.direct import DirectStore
from fanout.storage.file import Sync
from fanout.storage.replica import DiscReplica
from tests.link.harness import logging_to

__all__ = ["STORAGES", "Make", "direct_store", "replicas"]

STORAGES = ("ram", "disc_only")
"""What `replicas` makes: two kinds of replica that behave as one."""

Make: TypeAlias = Callable[..., Replica]
"""Makes an empty replica, with the arguments of `Replica`."""


def direct_store(
    path: Path,
    *,
    sync: Sync = "off",
    sync_interval_s: float = 0.01,
    held: list[bool] | None = None,
    lines: list[dict[str, object]] | None = None,
) -> DirectStore:
    """Return a store, closed."""
    return DirectStore(
        path,
        sync=sync,
        sync_interval_s=sync_interval_s,
        cache_bytes=1024 * 1024,
        hold=(held if held is not None else []).append,
        logger=logging_to([] if lines is None else lines),
    )


@contextmanager
def replicas(storage: str, directory: Path) -> Iterator[Make]:
    """Give what makes replicas of one of `STORAGES`; those on disk are in one file, each in a store of its own."""
    if storage == "ram":
        yield Replica
        return
    store = direct_store(directory / "retained.sqlite")
    store.open(now_ns=1)
    numbers = count()

    def make(**limits: Any) -> DiscReplica:
        return DiscReplica(store.table(f"store {next(numbers)}"), **limits)

    try:
        yield make
    finally:
        store.close(timeout_s=30)
