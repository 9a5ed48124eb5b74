"""Restore of replicas at the start of a node, from the file of retained values that an earlier process left.

Owns the choice of valid values. A link's values are dropped when its configuration has changed; the whole file is set
aside when a value is not as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from structlog.typing import FilteringBoundLogger

from fanout.config import LinkConfig
from fanout.link.durability.session_codec import find_resumption
from fanout.link.model.resumption import Resumption
from fanout.replica.store import Replica
from fanout.replica.update import DIGEST, PAYLOAD, TOPIC, ChangeKind, Changes, Phase, Update, content_digest
from fanout.selection import Selector
from fanout.storage.file import FileDamagedError
from fanout.storage.replica import DiscReplica
from fanout.storage.store import DiskStore
from fanout.storage.write_behind import WriteBehindStore

__all__ = ["OWN_STORE", "restore_replicas"]


OWN_STORE: Final = "own topics"
"""Name of the store of the node's own namespace; names of links have no blanks."""


def restore_replicas(
    storage: DiskStore,
    links: Sequence[tuple[LinkConfig, Replica]],
    *,
    own: Replica,
    node_id: str,
    now_ns: int,
    logger: FilteringBoundLogger,
) -> dict[str, Resumption]:
    """Open the file and restore the replicas, which are empty.

    Args:
        storage: The store, closed. With a `DirectStore` every replica is a `DiscReplica` on it, which only counts its
            values.
        links: Every link with its replica.
        own: The replica of the node's own namespace.
        node_id: This node.
        now_ns: Unix time in nanoseconds.
        logger: Takes log lines.

    Returns:
        The sessions that can be resumed, by the name of their link.

    Raises:
        StoreError: The file cannot be used.
    """
    storage.open(now_ns=now_ns)
    try:
        return _load(storage, links, own=own, node_id=node_id, logger=logger)
    except FileDamagedError as error:
        for replica in (own, *(replica for _, replica in links)):
            if isinstance(replica, DiscReplica):
                replica.forget()
                continue
            for _ in replica.tear_down(now_ns=now_ns):
                pass
        storage.set_aside(str(error), now_ns=now_ns)
        return {}


def _load(
    storage: DiskStore,
    links: Sequence[tuple[LinkConfig, Replica]],
    *,
    own: Replica,
    node_id: str,
    logger: FilteringBoundLogger,
) -> dict[str, Resumption]:
    resumptions: dict[str, Resumption] = {}
    storage.check_clients()  # their sessions are restored later, when nothing can be set aside any more
    sessions = storage.file.sessions()
    for config, replica in links:
        resumption = find_resumption(sessions.get(config.name), config, node_id=node_id)
        if resumption is None:
            continue
        dropped = _fill(storage, config.name, replica, selectors=resumption.selectors)
        resumptions[config.name] = resumption
        logger.info("replica loaded", link=config.name, topics=len(replica), dropped=dropped)
    for name in sessions.keys() - resumptions.keys() - {OWN_STORE}:
        storage.forget(name)
        logger.info("values of no use any more removed from disk", link=name)
    if OWN_STORE in sessions:
        dropped = _fill(storage, OWN_STORE, own, selectors=None)
        logger.info("own retained values loaded", topics=len(own), dropped=dropped)
    return resumptions


def _fill(storage: DiskStore, store: str, replica: Replica, *, selectors: Sequence[Selector] | None) -> int:
    """Fill a replica, and return how many values were dropped, from the file too.

    Args:
        storage: The store.
        store: Name of its store.
        replica: The replica.
        selectors: Values outside are dropped; None for the own namespace.
    """
    if isinstance(replica, DiscReplica):
        return replica.load(lambda update: _is_good(update, selectors))
    assert isinstance(storage, WriteBehindStore)
    dropped: list[Changes] = []
    for values in storage.read(store):
        good: list[Update] = []
        outside: list[Update] = []
        for update in values:
            (good if _is_good(update, selectors) else outside).append(update)
        changes = replica.apply(good, phase=Phase.SNAPSHOT)
        outside += [one for one, kind in zip(good, changes.kinds, strict=True) if kind == ChangeKind.REFUSED]
        if outside:
            dropped.append(Changes(outside, bytearray([ChangeKind.REMOVED]) * len(outside), [], Phase.AUDIT))
    if dropped:
        storage.put(store, dropped)
    return sum(len(changes.updates) for changes in dropped)


def _is_good(update: Update, selectors: Sequence[Selector] | None) -> bool:
    """Return True if a selector covers a value.

    Raises:
        FileDamagedError: The digest of the value is wrong.
    """
    selector = None if selectors is None else _selector_of(update[TOPIC], selectors)
    if selectors is not None and selector is None:
        return False
    prefix = 0 if selector is None else len(selector.prefix.encode())
    if content_digest(update[TOPIC][prefix:], update[PAYLOAD]) != update[DIGEST]:
        raise FileDamagedError(f"the value of {update[TOPIC]!r} is not what was written")
    return True


def _selector_of(topic: bytes, selectors: Sequence[Selector]) -> Selector | None:
    return next((selector for selector in selectors if selector.covers_local(topic)), None)
