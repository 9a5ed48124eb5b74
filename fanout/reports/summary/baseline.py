"""An earlier report that a trend is measured against: somebody's file, so nothing in it is trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from fanout.errors import ReportError
from fanout.reports.values.document import Report, TargetReport

__all__ = ["read_baseline"]

_VERSION: Final = 3
_BYTES_MAX: Final = 64 * 1024 * 1024
_COUNT_MAX: Final = 2**63
_HINT: Final = "Give --baseline the JSON of an earlier `fanout report summary`, `completeness` or `all`"


def read_baseline(path: Path) -> Report:
    """Return the report in a file.

    Raises:
        ReportError: It cannot be read, or is not the JSON of a report that this version can compare with.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ReportError(f"the baseline {path} cannot be read: {error.strerror}", hint=_HINT) from error
    if len(text) > _BYTES_MAX:
        raise _refused(path, f"is larger than {_BYTES_MAX // 1024**2} MiB")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(path, "is not JSON") from error
    if not isinstance(document, dict) or document.get("format") != "fanout-report":
        raise _refused(path, "is not a report")
    if (version := document.get("version")) != _VERSION:
        said = version if isinstance(version, int) and abs(version) < _COUNT_MAX else "unknown"
        raise _refused(path, f"is of version {said}, and version {_VERSION} is needed")
    try:
        report = Report.model_validate_json(text)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise _refused(path, f"is damaged: {place[:200]} is not what a report has there") from error
    if report.window is None or not report.targets:
        raise _refused(path, "has no figures of completeness")
    if not all(_is_possible(target) for target in report.targets):
        raise _refused(path, "is damaged: it has counts that cannot be")
    return report


def _is_possible(target: TargetReport) -> bool:
    """Return whether the counts that are compared can be counts."""
    one = target.updates
    return one is None or (
        min(one.missing, one.unknown) >= 0 and one.missing + one.unknown <= one.expected < _COUNT_MAX
    )


def _refused(path: Path, why: str) -> ReportError:
    return ReportError(f"the baseline {path} {why}", hint=_HINT)
