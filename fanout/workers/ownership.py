"""Ownership of clients by workers, and each worker's share of the node's limits (core).

The Client Identifier decides which worker serves a client, whichever worker accepted the connection. So a session is in
one worker, where the next connection of the client finds it. While that worker is silent another one serves its new
clients, again by their Client Identifiers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set

from xxhash import xxh3_64_intdigest

from fanout.config import NodeConfig

__all__ = ["new_client_id", "owner_of", "serving_worker_of", "share_of"]


def owner_of(client_id: str, workers: int) -> int:
    """Return the number of the worker that serves a client."""
    return xxh3_64_intdigest(client_id.encode()) % workers


def serving_worker_of(client_id: str, workers: int, *, silent: Set[int]) -> int:
    """Return the number of the worker that serves a new connection of a client now.

    Args:
        client_id: The Client Identifier.
        workers: Number of workers.
        silent: Workers that say nothing; while all are, each serves its own clients.
    """
    owner = owner_of(client_id, workers)
    if owner not in silent or len(silent) == workers:
        return owner
    # The highest of a digest for each worker: when a further one falls silent or returns, no other clients move.
    others = (number for number in range(workers) if number not in silent)
    return max(others, key=lambda number: xxh3_64_intdigest(client_id.encode(), seed=number))


def new_client_id(make: Callable[[], str], *, number: int, workers: int) -> str:
    """Return a Client Identifier that the worker `number` owns.

    Args:
        make: Makes a new identifier with each call.
        number: The worker.
        workers: Number of workers.
    """
    while owner_of(client_id := make(), workers) != number:
        pass
    return client_id


def share_of(config: NodeConfig) -> NodeConfig:
    """Return the configuration of one worker: limits of the whole node are divided by the workers, rounded up.

    Limits of one client, of one address and of rates stay as they are.
    """
    server, access = config.server, config.access
    assert server is not None
    workers = server.workers
    hook = access.http
    return dataclasses.replace(
        config,
        server=dataclasses.replace(
            server,
            connections_max=_share(server.connections_max, workers),
            sessions_max=_share(server.sessions_max, workers),
        ),
        access=dataclasses.replace(
            access,
            password_checks_max=_share(access.password_checks_max, workers),
            http=None if hook is None else dataclasses.replace(hook, requests_max=_share(hook.requests_max, workers)),
        ),
    )


def _share(limit: int, workers: int) -> int:
    return -(-limit // workers)
