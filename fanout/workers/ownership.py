"""Ownership of clients by workers, and each worker's share of the node's limits (core).

The Client Identifier decides which worker serves a client, whichever worker accepted the connection. So a session is in
one worker, where the next connection of the client finds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from xxhash import xxh3_64_intdigest

from fanout.config import NodeConfig

__all__ = ["new_client_id", "owner_of", "share_of"]


def owner_of(client_id: str, workers: int) -> int:
    """Return the number of the worker that serves a client."""
    return xxh3_64_intdigest(client_id.encode()) % workers


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
