"""The JSON Schema of the configuration: editors accept what the node accepts, and know every key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.config.translation import SECTIONS, section_keys

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "config.schema.json").read_text())


def faults(value: Any) -> list[str]:
    """Return the keys of a configuration that break the schema."""
    found = jsonschema.Draft202012Validator(SCHEMA).iter_errors(value)
    return sorted(".".join(map(str, one.absolute_path)) + f": {one.message}" for one in found)


def test_the_file_is_what_the_command_prints() -> None:
    """`fanout config schema` wrote it."""
    assert json.loads(CliRunner().invoke(app, ["config", "schema"]).stdout) == SCHEMA


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_configurations_name_the_schema_and_fit(path: Path) -> None:
    """The first line names it, and an editor finds no fault."""
    text = path.read_text()
    first = text.splitlines()[0]
    assert (
        path.parent / first.removeprefix("#:schema ")
    ).resolve() == ROOT / "docs" / "reference" / "config.schema.json"
    assert faults(tomllib.loads(text)) == []


def test_every_key_is_explained() -> None:
    """Each key of each section has a description, and an unknown one is a fault."""
    for name, section in SECTIONS.items():
        keys = SCHEMA["$defs"].get(section.__name__, SCHEMA)["properties"]
        assert keys.keys() == set(section_keys(name)), name
        assert [key for key in keys if not keys[key].get("description")] == [], name
    found = faults({"node": {"id": "edge", "ids": 1}, "link": [{}], "server": {"qos_max": 3}})
    assert [one.partition(":")[0] for one in found] == ["link.0", "link.0", "node", "server.qos_max"]


def test_the_example_has_every_key() -> None:
    """It is the file of the repository, without the path of its schema."""
    answer = CliRunner().invoke(app, ["config", "example"])
    assert answer.stdout == (ROOT / "configs" / "full.toml").read_text().partition("\n")[2]
