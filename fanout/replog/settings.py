"""Settings and figures of a replication log: bounds, intervals, statistics."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ArchiveSettings", "ArchiveStats", "LogSettings", "LogStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Retention and shipping of sealed files."""

    keep_days: float = 0.0
    """Age at which they are removed here; 0 for never."""
    keep_bytes_max: int = 0
    """Bytes of them that are kept here; 0 for no limit."""
    ship_to: str | None = None
    """URI to which they are copied; None for nowhere."""
    retry_min_s: float = 1.0
    """The first pause after the store failed; it doubles, with jitter."""
    retry_max_s: float = 60.0
    """The longest pause."""
    behind_max_s: float = 900.0
    """Time for which a sealed file may wait for the store before there is an alarm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Bounds and intervals."""

    flush_interval_s: float = 0.1
    """Time for which a row may wait before it is written."""
    fsync_interval_s: float = 1.0
    """Time for which a written row may wait before it is on the disk."""
    segment_bytes_max: int = 64 * 1024 * 1024
    """Size at which a segment is sealed."""
    segment_age_max_s: float = 60.0
    """Age at which a segment is sealed; one is also sealed when a new hour begins."""
    queue_rows_max: int = 1_000_000
    """Updates that may wait to be written."""
    queue_bytes_max: int = 512 * 1024 * 1024
    """Bytes that these may have, estimated: 200 each, and payloads and properties by a sample."""
    queue_events_max: int = 10_000
    """Events that may wait to be written."""
    frame_rows: int = 8192
    """Number of queued rows that starts a write before the next flush."""
    retry_interval_s: float = 1.0
    """Pause after the disk failed."""
    archive: ArchiveSettings | None = None
    """Retention and shipping of sealed files; None leaves them where they are."""


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
    """Space on the disk of the log as of that sync; None before."""
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
