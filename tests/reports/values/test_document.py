"""The JSON of a report and its published schema."""

from __future__ import annotations

import json
from pathlib import Path

from fanout.reports.values.document import Report, schema_text
from tests.reports.documents import report, stamped, target, unstamped


def test_json_holds_everything_and_reads_back() -> None:
    """The file is versioned, ends with a line feed, and gives the same report again."""
    made = report(target(), target(figures=unstamped(missing=2)), hostile=True, fail_under=99)
    text = made.to_json()
    assert text.endswith("}\n")
    document = json.loads(text)
    assert (document["format"], document["version"], document["report"]) == ("fanout-report", 3, "completeness")
    assert document["parameters"]["settle_s"] == 5
    assert document["window"]["settled_until"] == "2026-02-02T02:44:55Z"
    assert [t["basis"] for t in document["targets"]] == ["stamped", "unstamped"]
    assert document["targets"][1]["unstamped"]["missing"] == 2
    assert Report.model_validate_json(text) == made


def test_what_is_unknown_is_null() -> None:
    """A share that a gap makes unknown is null beside its bounds, never a number."""
    document = json.loads(report(target(figures=stamped(unknown=5, missing=1))).to_json())
    figures = document["targets"][0]["stamped"]
    assert figures["complete_percent"] is None
    assert (figures["complete_percent_at_least"], figures["complete_percent_at_most"]) == (94, 99)


def test_the_schema_describes_its_fields() -> None:
    """The published schema carries the meaning of the figures, from the same place as the code's documentation."""
    schema = json.loads(schema_text())
    figures = schema["$defs"]["UpdateFigures"]["properties"]
    assert all("description" in figures[name] for name in ("expected", "missing", "unknown", "superseded", "pending"))
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(json.loads(report().to_json()))


def test_the_schema_in_the_documents_is_that_of_the_code() -> None:
    """`fanout report schema > docs/reference/report.schema.json` writes it anew."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "report.schema.json"
    assert page.read_text() == schema_text()
