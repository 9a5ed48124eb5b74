"""The HTTP documents: names with units, null for unknown, invariants."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import BaseModel, ValidationError

from fanout.api import models
from fanout.api.browse.models import TopicView
from fanout.api.models import EVIDENCE, LINK_STATES, LinkDetail, LinkLag, NodeState, NodeStatus, Readiness, utc_from_ns
from fanout.link.model.evidence import Evidence
from fanout.link.model.states import LinkState
from fanout.link.model.status import STALE
from tests.api.stand_in import ready_node


def documents() -> list[type[BaseModel]]:
    """Return every model of the module."""
    return [
        value
        for name in models.__all__
        if isinstance(value := getattr(models, name), type) and issubclass(value, BaseModel)
    ]


def test_utc_from_ns_keeps_microseconds() -> None:
    """Unix nanoseconds become a UTC timestamp, exact to the microsecond."""
    assert utc_from_ns(1_763_712_000_250_001_999) == datetime(2025, 11, 21, 8, 0, 0, 250_001, tzinfo=UTC)


def test_readiness_with_a_reason_is_not_ready() -> None:
    """`ready` and `reasons` cannot contradict each other."""
    wrong: list[tuple[bool, NodeState, tuple[str, ...]]] = [
        (True, "ready", ("link plant is down",)),
        (False, "not_ready", ()),
        (True, "draining", ()),
        (False, "ready", ("link plant is down",)),
    ]
    for ready, state, reasons in wrong:
        with pytest.raises(ValidationError, match="exactly when there is no reason"):
            Readiness(ready=ready, state=state, reasons=reasons, node="edge-1", role="secondary", links=())


def test_lag_unknown_is_null_never_zero() -> None:
    """A lag whose basis is unknown has no number, and a number has a basis."""
    known = ready_node().lag().links[0]
    with pytest.raises(ValidationError, match="null exactly when"):
        LinkLag.model_validate({**known.model_dump(), "basis": "unknown", "lag_seconds": 0.0})
    with pytest.raises(ValidationError, match="null exactly when"):
        LinkLag.model_validate({**known.model_dump(), "lag_seconds": None})


def test_status_survives_json() -> None:
    """A document read back from its JSON equals the document."""
    status = ready_node().status()
    assert NodeStatus.model_validate_json(status.model_dump_json()) == status


def test_unknown_fields_of_a_newer_node_are_ignored() -> None:
    """An older command reads the answer of a newer node."""
    status = ready_node().status()
    assert NodeStatus.model_validate({**status.model_dump(), "invented_later": 1}) == status


def test_documents_are_frozen() -> None:
    """A document is a value."""
    for document in documents():
        assert document.model_config.get("frozen") is True, document


def test_the_import_of_documents_reads_no_source() -> None:
    """Docstrings of fields are read when a schema is asked for: at the import they would delay the node's listener."""
    assert [document for document in documents() if document.model_config.get("use_attribute_docstrings")] == []


def test_docstrings_of_fields_describe_them_in_the_schema() -> None:
    """Those that a model inherits too, and not in place of a description that the field has otherwise."""
    fields = TopicView.model_json_schema()["properties"]
    assert fields["received"]["description"] == "When it came to this node."
    assert "description" not in fields["qos"]
    assert LinkDetail.model_json_schema()["properties"]["state"]["description"] == "Present state of the link."


def test_numbers_carry_their_unit() -> None:
    """Every number says its unit in its name, or is a count of what its name says."""
    counted = {"topics", "connections", "sessions", "subscriptions", "audiences", "limits", "epoch", "hops"}
    counted |= {"pid", "number", "rules", "users", "decisions", "password_waiting", "hook_waiting", "updates"}
    counted |= {
        "items_behind",
        "missing_pending",
        "unconfirmed",
        "unnamed",
        "confirmed",
        "counted_outside",
        "expected",
        "applied",
        "missing",
        "unknown",
        "pending",
        "members",
        "members_reachable",
        "members_equal",
        "members_ready",
        "lag",  # seconds, as its description says
        "moved_in",
        "moved_out",
        "sessions_copied",
        "copies_held",
    }
    units = (
        "_seconds",
        "_bytes",
        "_total",
        "_topics",
        "_messages",
        "_rows",
        "_segments",
        "_files",
        "_per_second",
        "_at_least",
        "_at_most",
        "_ratio",
    )
    for document in documents():
        for name, field in document.model_fields.items():
            kinds = str(field.annotation)
            if "int" in kinds or "float" in kinds:
                assert name in counted or name.endswith(units), f"{document.__name__}.{name}"


def test_link_states_are_those_of_the_link() -> None:
    """The documents and metrics know every state that a link can be in, and no other."""
    assert set(LINK_STATES) == {state.value for state in LinkState} | {STALE}


def test_evidence_covers_what_a_link_gives() -> None:
    """Every evidence that a link can report stands on the ladder of the documents."""
    assert {evidence.value for evidence in Evidence} <= set(EVIDENCE)
