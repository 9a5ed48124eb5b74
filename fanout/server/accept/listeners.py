"""Listening sockets of the server, and the TLS certificates of their listeners."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from fanout.config import Address, ListenerConfig, PoolConfig
from fanout.errors import ListenError
from fanout.runtime.listening import BACKLOG, Acceptor, open_listening_sockets
from fanout.server.accept.admission import AcceptingServer, AcceptPipeline, ListenerContext, accept_connection
from fanout.server.accept.shared_port import SharedPort
from fanout.server.accept.tls import ListenerTls

__all__ = ["NOTSENT_LOWAT", "UNSENT_BYTES", "Listeners"]

UNSENT_BYTES: Final = 256 * 1024
"""Limit of unsent bytes in the kernel for one connection (TCP_NOTSENT_LOWAT); the rest waits in queues that clients
share. Without it Linux buffers up to 4 MiB of copies for each client that does not read."""
NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_SOCKET_MODE: Final = 0o660
_PROBE_S: Final = 1.0


class Listeners:
    """Listening sockets, all open or none."""

    def __init__(self, pool: PoolConfig | None = None) -> None:
        """Prepare; nothing is open yet.

        Args:
            pool: The pool whose members may share a port; None where no listener shares one.
        """
        self._shared_port = None if pool is None else SharedPort(pool)
        self._servers: list[tuple[ListenerConfig, Acceptor]] = []
        self._tls: dict[ListenerConfig, ListenerTls] = {}
        self._paths: dict[Path, int] = {}
        self._pending: dict[AcceptPipeline, None] = {}

    async def open(self, listeners: Iterable[ListenerConfig], server: AcceptingServer) -> None:
        """Listen on all of `listeners`, and serve their connections.

        Raises:
            ListenError: An address cannot be bound, or a certificate cannot be used; all others are closed again.
        """
        try:
            for config in listeners:
                tls = _tls_of(config)
                self._serve(config, await self._bind(config), server, tls=tls)
        except BaseException:
            self.close()
            raise

    async def check(self, listeners: Iterable[ListenerConfig]) -> None:
        """Bind the addresses of `listeners` and free them again, as a test that `open` can use them.

        Raises:
            ListenError: An address cannot be bound.
        """
        try:
            for config in listeners:
                _close(await self._bind(config, backlog=None))
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening; connections stay open, except those in the accept pipeline."""
        self._close_all([config for config, _ in self._servers])
        if self._shared_port is not None:
            self._shared_port.release()
        self._tls.clear()
        for path in list(self._paths):
            self._remove_path(path)
        for connection in list(self._pending):
            connection.abort()

    async def change(self, listeners: Sequence[ListenerConfig], server: AcceptingServer) -> None:
        """Listen on exactly these from now on; those that are open already are left alone, and connections stay open.

        Raises:
            ListenError: An address cannot be bound, or a certificate cannot be used; those from before are open then.
        """
        closed = [config for config, _ in self._servers if config not in listeners]
        wanted = [config for config in listeners if config not in [each for each, _ in self._servers]]
        # Files are read before anything is closed: those of the closed ones may be gone by now.
        tls = {config: _tls_of(config) for config in wanted}
        tls |= {config: self._tls.get(config) for config in closed}
        self._close_all(closed)
        try:
            for config in wanted:
                self._serve(config, await self._bind(config), server, tls=tls[config])
        except ListenError:
            self._close_all(wanted)
            for config in dict.fromkeys(closed):
                self._serve(config, await self._bind(config), server, tls=tls[config])
            raise

    def _close_all(self, configs: Sequence[ListenerConfig]) -> None:
        for config, server in self._servers:
            if config in configs:
                server.close()
                self._tls.pop(config, None)
                self._remove_path(Path(config.address.host))
        self._servers = [each for each in self._servers if each[0] not in configs]

    def _remove_path(self, path: Path) -> None:
        inode = self._paths.pop(path, None)
        with contextlib.suppress(FileNotFoundError):
            if inode is not None and path.stat().st_ino == inode:  # otherwise it is the socket of another process
                path.unlink()

    def reload(self) -> list[ListenError]:
        """Read certificates, keys and certificate authorities again, for new connections.

        Returns:
            The errors of listeners that keep their old files.
        """
        errors: list[ListenError] = []
        for tls in self._tls.values():
            try:
                tls.reload()
            except ListenError as error:
                errors.append(error)
        return errors

    @property
    def addresses(self) -> list[str]:
        """Addresses of the listeners with the real ports, as the configuration writes addresses."""
        found: list[str] = []
        for config, server in self._servers:
            address = config.address
            for one in server.sockets:
                if address.scheme == "unix":
                    found.append(str(address))
                else:
                    host, port = one.getsockname()[:2]
                    found.append(str(Address(address.scheme, host, port)))
        return found

    async def _bind(self, config: ListenerConfig, *, backlog: int | None = BACKLOG) -> list[socket.socket]:
        address = config.address
        shared = self._shared_port if config.share_port else None

        def prepare(listening: socket.socket) -> None:
            if NOTSENT_LOWAT is not None:
                listening.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT_BYTES)
            if shared is not None:
                shared.claim(listening)

        bound: list[socket.socket] = []
        try:
            if address.scheme == "unix":
                return [self._bind_unix(Path(address.host))]
            bound = await open_listening_sockets(address.host, address.port, backlog=backlog, prepare=prepare)
            if shared is None or not shared.has_stranger(bound):
                return bound
        except OSError as error:
            _close(bound)
            what = "path" if address.scheme == "unix" else "port"
            key = "server.listen or [[server.listener]]"
            raise ListenError.of(error, address=str(address), key=key, what=what) from error
        _close(bound)
        raise ListenError(
            f"cannot listen on {address}: a process that is no member of this pool shares the port",
            hint="Stop it, choose another port in server.listen or [[server.listener]], or add it to pool.peers",
        )

    def _serve(
        self,
        config: ListenerConfig,
        bound: Iterable[socket.socket],
        server: AcceptingServer,
        *,
        tls: ListenerTls | None,
    ) -> None:
        take = partial(accept_connection, ListenerContext(config, tls, server, self._pending))
        for one in bound:
            self._servers.append((config, Acceptor(one, take, failed=partial(_log_failure, server))))
        if tls is not None:
            self._tls[config] = tls

    def _bind_unix(self, path: Path) -> socket.socket:
        """Return a socket bound to `path`; the socket of a killed process is replaced."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if path.is_socket():
                _remove_leftover(path)
            elif path.exists():  # bind would say that it is in use
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
            bound.bind(str(path))
            self._paths[path] = path.stat().st_ino
            path.chmod(_SOCKET_MODE)
            bound.listen(BACKLOG)
        except BaseException:
            bound.close()
            raise
        bound.setblocking(False)
        return bound


def _tls_of(config: ListenerConfig) -> ListenerTls | None:
    return ListenerTls(config) if config.address.has_tls else None


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()


def _log_failure(server: AcceptingServer, error: OSError) -> None:
    server.context.logger.error("cannot_accept", detail=str(error))


def _remove_leftover(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:  # left by a killed process
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
