"""Sessions on disk: in the file of retained values, always up to date.

Owns the order of things at a start: sessions are recovered before anything writes to the file, the journal begins
with what was found, and only then clients are served.
"""

from __future__ import annotations

import asyncio

from structlog.typing import FilteringBoundLogger

from fanout.durable.form.session_record import last_batch
from fanout.durable.hosting.session_recovery import Recovered, recover_sessions
from fanout.durable.hosting.session_restart import SessionRestart
from fanout.durable.keeping.session_journal import SessionJournal
from fanout.runtime.system_clock import Clock
from fanout.server.client.server import Server
from fanout.storage.store import DiskStore

__all__ = ["JournaledSessions"]


class JournaledSessions:
    """The sessions of a node on disk."""

    def __init__(self, server: Server, storage: DiskStore, *, clock: Clock, logger: FilteringBoundLogger) -> None:
        """Prepare.

        Args:
            server: Serves the clients.
            storage: The file of retained values.
            clock: Gives the time.
            logger: Takes log lines.
        """
        self._server = server
        self._storage = storage
        self._logger = logger
        self._restart = SessionRestart(server, clock=clock, logger=logger)
        self._found: dict[str, Recovered | None] = {}
        self._journal: SessionJournal | None = None

    async def recover(self) -> None:
        """Put the sessions of the earlier process into the server, which has none yet; before `storage.start`."""
        storage = self._storage
        records = await asyncio.to_thread(storage.file.client_records)
        # A record may name the batch after the last one, and all before may be gone; or there is a batch and no record.
        newest = max([storage.file.history_position(), *map(last_batch, records.values())])
        if not storage.begin_history(newest) and records:
            await asyncio.to_thread(storage.end_clients, "batches of messages that were written are not there")
            records = {}
        found: dict[str, Recovered] = {}
        if records:
            history = storage.file.history()
            found = await recover_sessions(
                self._server, self._restart, records=records, history=history, logger=self._logger
            )
        self._found = {client_id: found.get(client_id) for client_id in records}

    @property
    def epochs(self) -> dict[str, bytes]:
        """Epochs of each restored session, as its pool has written them."""
        present = self._server.registry.get
        return {name: one.epochs for name, one in self._found.items() if one is not None and present(name) is not None}

    def begin(self) -> None:
        """Write sessions from now on; after `storage.start`, and before a client is served."""
        self._journal = SessionJournal(self._server, self._storage)
        self._server.lifecycles.keepers.join(self._journal, is_disk=True)
        for client_id, found in self._found.items():
            session = self._server.registry.get(client_id)
            if found is not None and session is not None and not session.shared:
                self._journal.restored(client_id, position=found.position)
            elif not self._restart.has_will_of(client_id):
                self._journal.marks.mark(client_id)  # so that its record goes

    def leave(self) -> None:
        """Hand over unwritten sessions before the file is closed."""
        if self._journal is not None:
            self._journal.write_all()
