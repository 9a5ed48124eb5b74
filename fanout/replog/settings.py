"""Settings and figures of a replication log: bounds, intervals, statistics."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from fanout.config import LogConfig

__all__ = ["ArchiveStats", "LogSettings", "LogStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(LogConfig):
    """Keys of `[log]`, and bounds that none of them changes."""

    queue_bytes_max: int = 512 * 1024 * 1024
    """Bytes that updates which wait to be written may have, estimated: 200 each, and payloads and properties by a
    sample."""
    queue_events_max: int = 10_000
    """Events that may wait to be written."""
    frame_rows: int = 8192
    """Number of queued rows that starts a write before the next flush."""
    retry_interval_s: float = 1.0
    """Pause after the disk failed."""
    ship_retry_min_s: float = 1.0
    """The first pause after the store of sealed files failed; it doubles, with jitter."""

    @classmethod
    def of(cls, config: LogConfig) -> Self:
        """Return the settings with the keys of a configuration."""
        return cls(**{key.name: getattr(config, key.name) for key in fields(config)})

    @property
    def archives(self) -> bool:
        """True if sealed files are shipped or removed; otherwise they are left where they are."""
        return self.ship is not None or self.keep_days > 0 or self.keep_bytes_max > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStats:
    """Figures of the sealed files; totals since the start of the node."""

    kept_files: int
    """Sealed files of the node in the directory."""
    kept_bytes: int
    """Their bytes."""
    removed_files_total: int
    """Sealed files removed for their age or the size of all."""
    shipped_files_total: int
    """Sealed files copied to the store."""
    shipped_bytes_total: int
    """Their bytes."""
    waiting_files: int
    """Sealed files that the store has not confirmed."""
    oldest_waiting_seconds: float
    """Time since the oldest of these was sealed; 0 when there is none."""
    failures_total: int
    """Attempts to use the store that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Figures of a log; totals since the start of the node."""

    log_pos: int
    """The last position assigned."""
    written_log_pos: int
    """Rows up to here are written and survive the end of the process, or a gap event covers them."""
    synced_log_pos: int
    """Rows up to here are on the disk, or a gap event covers them."""
    rows_total: int
    """Updates written."""
    events_total: int
    """Events written."""
    lost_rows_total: int
    """Updates that were not logged: the queue was full, or the disk failed."""
    lost_events_total: int
    """Events that were not logged."""
    queued_rows: int
    """Updates that wait to be written."""
    queued_bytes: int
    """Their estimated size."""
    written_bytes_total: int
    """Bytes of segments."""
    sealed_segments_total: int
    """Segments that became Parquet."""
    unsealed_segments: int
    """Segments that wait to be sealed; grows when the disk is slow or full."""
    last_sync_ns: int
    """Time of the last sync, Unix time in nanoseconds; 0 for never."""
    disk_free_bytes: int | None
    """Space on the disk of the log as of that sync; None before, and if it was not known then."""
    duplicates_total: int
    """Updates with FLAG_DUPLICATE."""
    stale_total: int
    """Updates with FLAG_OVERTAKEN."""
    recovered_segments: int
    """Segments that the last run left behind."""
    recovered_rows: int
    """Updates in them."""
    recovered_torn_bytes: int
    """Bytes in them that were no whole frame."""
    alarm: str
    """Present faults; empty for none."""
    archive: ArchiveStats | None = None
    """Figures of sealed files; None when they are left where they are."""
