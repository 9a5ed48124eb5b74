"""Which worker serves a client, and what share of a limit it has (core).

Owns these two rules. A client is served by the worker that its Client Identifier names, whoever accepted the
connection: so a session is in one place, and is found again by the next connection, which takes it over or resumes it.
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
    """Return a Client Identifier whose client is served by the worker `number`.

    Args:
        make: Makes a new one with each call.
        number: The worker.
        workers: How many there are.
    """
    while owner_of(client_id := make(), workers) != number:
        pass
    return client_id


def share_of(config: NodeConfig) -> NodeConfig:
    """Return a node's configuration with those limits divided by the workers that bound the whole node.

    They are rounded up. What bounds one client, one address or a rate holds in each worker as it is.
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
