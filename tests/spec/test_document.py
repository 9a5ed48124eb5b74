"""The document that is made from the spec tests."""

from __future__ import annotations

from pathlib import Path

from tests.spec.statements import STATEMENTS, document

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "mqtt-support.md"


def test_document_is_up_to_date() -> None:
    """`docs/reference/mqtt-support.md` is what `scripts/mqtt_support` makes of the tests."""
    assert DOCUMENT.read_text() == document(), "run scripts/mqtt_support"


def test_statements_are_named_as_the_specifications_name_them() -> None:
    """Every test is named for one of its statements, as far as it has one of MQTT 5."""
    document()
    for one in STATEMENTS:
        numbers = {
            other.identifier.removeprefix("MQTT-").replace(".", "_").replace("-", "_")
            for other in STATEMENTS
            if (other.module, other.test) == (one.module, one.test)
        }
        assert any(f"_{number}_" in one.test for number in numbers), one
