"""Disk store: common base of the stores that hold retained values in a file.

Owns the file from opening to setting it aside, and the sessions that owners leave beside their values.
"""

from __future__ import annotations

import abc
import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from fanout.replica.history import HistoryBatch, MessageHistory, Origin
from fanout.replica.update import ChangeKind, Changes
from fanout.storage.file import FileDamagedError, RetainedFile, Sync, unusable
from fanout.storage.told_mark import ToldMark

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

__all__ = ["DiskStore", "Done", "Encode", "StoreOptions", "StoreStats", "stored_rows"]

Done = Callable[[], None]
Encode = Callable[[], bytes]

_UNTOUCHED: Final = bytes({int(ChangeKind.MESSAGE), int(ChangeKind.UNCHANGED)})


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Figures of a store."""

    path: Path
    """The file."""
    file_bytes: int
    """Size of the file with its write-ahead log."""
    committed_total: int
    """Updates committed."""
    transactions_total: int
    """Transactions committed."""
    waiting_rows: int
    """Updates not committed yet."""
    waiting_bytes: int
    """Bytes of their payloads and properties."""
    alarm: str
    """Reason why nothing can be written now; empty when it can."""


class StoreOptions(TypedDict):
    """Options of every store; `DiskStore` describes them."""

    sync: Sync
    sync_interval_s: float
    hold: Callable[[bool], None]
    logger: FilteringBoundLogger


class DiskStore(abc.ABC):
    """The retained values of a node, in a file that a thread of the store tends.

    Made closed. `open`, what reads the `file` and `forget` come first, and `close` last; they wait for the disk: call
    them from a thread, not from the event loop. `put` is for the event loop between `start` and `close`.
    """

    def __init__(self, path: Path, *, thread_name: str, **options: Unpack[StoreOptions]) -> None:
        """Prepare; nothing is touched before `open`.

        Args:
            path: The file.
            thread_name: Name of the thread.
            options: `sync`: when committed values are forced to the disk. `sync_interval_s`: used with `interval` only.
                `hold`: called on the event loop, with True when too much is pending, with False when it no longer is.
                `logger`: takes log lines.
        """
        self.path = path
        self._sync = options["sync"]
        self._sync_interval_s = options["sync_interval_s"]
        self._hold = options["hold"]
        self._logger = options["logger"]
        self._file: RetainedFile | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._failed = asyncio.Event()
        self._held = False
        self._transactions = 0
        self.is_cut = False
        """True if the file has lost its end, so that what was acknowledged may be missing."""
        self._mark: ToldMark | None = None
        self.history = MessageHistory()
        """Numbers the batches that sessions of clients may wait for; what reads the file sets where they begin."""

    @property
    def file(self) -> RetainedFile:
        """The open file."""
        assert self._file is not None, "open it first"
        return self._file

    def open(self, *, now_ns: int) -> None:
        """Open the file, or create it; a damaged one is set aside, and a new one created.

        Raises:
            StoreError: Another process has it open, another version made it, or it cannot be used.
        """
        try:
            self._open()
            if self.file.wal_damage:
                self.end_clients(self.file.wal_damage)
        except FileDamagedError as error:
            self.set_aside(str(error), now_ns=now_ns)

    def end_clients(self, reason: str) -> None:
        """Remove the sessions of clients, because the end of the file, or of its write-ahead log, is missing."""
        self.is_cut = True
        self._logger.error(
            "file of retained values has lost its end",
            reason=reason,
            file=str(self.path),
            sessions_ended=self.forget_clients(),
            hint="Clients get Session Present 0; retained values of this node's own topics may be outdated, and links"
            " compare theirs. Check the disk",
        )

    def set_aside(self, reason: str, *, now_ns: int) -> None:
        """Rename the file, which is damaged, and create a new one.

        Raises:
            StoreError: It cannot be renamed, or no new one created.
        """
        if self._file is not None:
            self._file.close()
        RetainedFile.set_aside(self.path, reason, now_ns=now_ns, logger=self._logger)
        self._open()

    def forget(self, store: str) -> None:
        """Remove a store with all its values."""
        self.file.forget(store)

    def start(self) -> None:
        """Start the thread; to be called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def check_clients(self) -> None:
        """Read the sessions of clients and the history, and forget what was read.

        Raises:
            FileDamagedError: The file cannot be read.
        """
        self.file.client_records()
        deque(self.file.history(), maxlen=0)

    def forget_clients(self) -> int:
        """Remove the sessions of clients and the history, before `start`; return how many sessions there were."""
        return self.file.forget_clients()

    def begin_history(self, position: int) -> bool:
        """Continue the history after its last batch, before `start`.

        Args:
            position: The number of that batch, as far as the history and the records of sessions tell.

        Returns:
            True if it is the last one that was committed; if not, the file has lost its end.

        Raises:
            StoreError: The mark beside the file cannot be used.
        """
        mark = self.path.with_name(f"{self.path.name}-told")
        try:
            self._mark = self._mark or ToldMark(mark)
        except OSError as error:
            raise unusable(mark, error) from error
        is_whole = position >= self._mark.position
        self.history.position = self._mark.position = position
        return is_whole

    def _tell_history(self, history: Sequence[HistoryBatch]) -> None:
        """Note that batches are committed, before anybody is told."""
        if history and self._mark is not None:
            self._mark.position = history[-1].position

    @property
    def history_position(self) -> int:
        """Number of the newest batch of the history."""
        return self.history.position

    @property
    def history_updates(self) -> int:
        """Number of updates that were put into the history."""
        return self.history.updates

    def keep_history(self, wanted: bool, /) -> None:
        """Say whether batches that are dispatched from now on are needed."""
        self.history.is_wanted = wanted

    @abc.abstractmethod
    def put_sessions(self, records: dict[str, bytes | None], *, history_from: int, done: Done) -> None:
        """Hand over sessions of clients.

        Args:
            records: Their records by Client Identifier, None for one that has ended; not changed afterwards.
            history_from: Number of the oldest batch of the history that is needed still; 0 leaves the history as it is.
            done: Called on the event loop when this and everything before is committed.
        """

    @abc.abstractmethod
    def put(
        self,
        store: str,
        changes: Sequence[Changes],
        *,
        session: Encode | None = None,
        done: Done | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Hand over the changes of batches, before they are dispatched.

        Only references are taken, so `changes` must not change afterwards.

        Args:
            store: Name of the store.
            changes: The batches, in order; with `session` they are committed together, or not at all.
            session: Encodes the session of the store; None leaves the stored session.
            done: Called on the event loop when this and everything before is committed.
            origin: The local client that published them; None for others.
        """

    @property
    @abc.abstractmethod
    def waiting(self) -> int:
        """Number of updates that are not committed yet."""

    @abc.abstractmethod
    async def wait_failed(self) -> None:
        """Wait until the store fails, and raise its error."""

    @abc.abstractmethod
    def stats(self) -> StoreStats:
        """Return the figures of this moment."""

    @abc.abstractmethod
    def close(self, *, timeout_s: float) -> bool:
        """Write pending values, and close the file; return whether everything is written.

        Args:
            timeout_s: Time limit.
        """

    def _open(self) -> None:
        self._file = RetainedFile(self.path, sync=self._sync)

    def _make_stats(self, *, committed: int, waiting_bytes: int, alarm: str) -> StoreStats:
        return StoreStats(
            path=self.path,
            file_bytes=self._file.size_bytes if self._file is not None else 0,
            committed_total=committed,
            transactions_total=self._transactions,
            waiting_rows=self.waiting,
            waiting_bytes=waiting_bytes,
            alarm=alarm,
        )

    @abc.abstractmethod
    def _run(self) -> None:
        """Do the work of the thread."""


def stored_rows(changes: Changes) -> int:
    """Return how many updates of a batch are to be written."""
    return len(changes.kinds.translate(None, _UNTOUCHED)) + len(changes.corrected)
