"""The JSON Schema of the configuration: editors accept what the node accepts, and know every key."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.config.translation import SECTIONS, section_keys

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "config.schema.json").read_text())
KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def faults(value: Any, schema: dict[str, Any], at: str = "") -> list[str]:
    """Return where a value breaks a schema, by the keywords that this one uses (JSON Schema 2020-12)."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return min((faults(value, one, at) for one in schema["anyOf"]), key=len)
    if not isinstance(value, KINDS[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return [f"{at} is no {schema['type']}"]
    if isinstance(value, dict):
        known = schema["properties"]
        found = [f"{at}.{key} is unknown" for key in value.keys() - known.keys()]
        found += [f"{at}.{key} is missing" for key in schema.get("required", []) if key not in value]
        return found + [
            one for key in value.keys() & known.keys() for one in faults(value[key], known[key], f"{at}.{key}")
        ]
    if isinstance(value, list):
        return [one for number, each in enumerate(value) for one in faults(each, schema["items"], f"{at}[{number}]")]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at} is none of {schema['enum']}"]
    if isinstance(value, int | float) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        return [f"{at} is out of bounds"]
    return []


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
    assert faults(tomllib.loads(text), SCHEMA) == []


def test_every_key_is_explained() -> None:
    """Each key of each section has a description, and an unknown one is a fault."""
    for name, section in SECTIONS.items():
        keys = SCHEMA["$defs"].get(section.__name__, SCHEMA)["properties"]
        assert keys.keys() == set(section_keys(name)), name
        assert [key for key in keys if not keys[key].get("description")] == [], name
    assert sorted(faults({"node": {"id": "edge", "ids": 1}, "link": [{}], "server": {"qos_max": 3}}, SCHEMA)) == [
        ".link[0].name is missing",
        ".link[0].primary is missing",
        ".node.ids is unknown",
        ".server.qos_max is out of bounds",
    ]


def test_the_example_has_every_key() -> None:
    """It is the file of the repository, without the path of its schema."""
    answer = CliRunner().invoke(app, ["config", "example"])
    assert answer.stdout == (ROOT / "configs" / "full.toml").read_text().partition("\n")[2]
