"""The file of the trend: a line of JSON for each report, which later reports are compared with.

Owns the form of the file and the choice of lines that stay; the file is written anew with each report. It is somebody's
file: nothing in it is trusted, and one that another program wrote is refused before anything is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from fanout.errors import ReportError
from fanout.reports.summary.trend import KEPT
from fanout.reports.values.history import FORMAT, VERSION, PastReport

__all__ = ["parse_trend", "read_trend", "trend_text"]

_BYTES_MAX: Final = 64 * 1024 * 1024
_REPORTS_MAX: Final = 10_000
"""The newest of them stay: one every five minutes for 30 days are 8,640."""
_HINT: Final = "Give --trend a file of its own; where it is damaged, move it away, and the trend begins anew"


def read_trend(path: Path) -> tuple[PastReport, ...]:
    """Return the reports in a file, in the order of their lines; none where there is no file yet.

    A last line without its end, left by a copy or a full disk, is ignored.

    Raises:
        ReportError: It cannot be read, or another program wrote it.
    """
    try:
        if path.exists() and not path.is_file():
            raise _refused(path, "is not a file")
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror}") from error
    if len(content) > _BYTES_MAX:
        raise _refused(path, f"is larger than {_BYTES_MAX // 1024**2} MiB")
    return parse_trend(content, path=path)


def parse_trend(content: bytes, *, path: Path | str) -> tuple[PastReport, ...]:
    """Return the reports in the content of a file, as `read_trend` does.

    Raises:
        ReportError: Another program wrote it.
    """
    *lines, torn = content.split(b"\n")
    if torn and not lines:
        raise _refused(path, "is not a file of the trend")
    return tuple(_parse(line, path=path, number=number) for number, line in enumerate(lines, 1))


def trend_text(history: Sequence[PastReport], *, added: PastReport) -> str:
    """Return a file of the reports, this one last, without those that ended more than 30 days before it."""
    kept = [one for one in history if one.end >= added.end - KEPT][-(_REPORTS_MAX - 1) :]
    return "".join(f"{one.model_dump_json()}\n" for one in (*kept, added))


def _parse(line: bytes, *, path: Path | str, number: int) -> PastReport:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"is not a file of the trend: line {number} is not JSON") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _refused(path, f"is not a file of the trend: line {number} is of another program")
    if document.get("version") != VERSION:
        raise _refused(path, f"is of another version than {VERSION}, in line {number}")
    try:
        return PastReport.model_validate_json(line)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"])) or "the whole"
        raise _refused(path, f"is damaged: {place[:200]} in line {number} is not what a report has there") from error


def _refused(path: Path | str, why: str) -> ReportError:
    return ReportError(f"the file of the trend {path} {why}", hint=_HINT)
