"""JSON Schema (draft 2020-12) of the configuration file, for editors, and a file with every key."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fanout.config.settings import NodeConfig
from fanout.config.translation import SECTIONS, keys_of_fields

__all__ = ["example_text", "schema_text"]


def schema_text() -> str:
    """Return the schema as the text of a file, with the docstring of each key as its description."""
    schema = _for_toml(TypeAdapter(NodeConfig).json_schema(by_alias=True))
    for section in SECTIONS.values():
        keys = schema["$defs"].get(section.__name__, schema)["properties"]
        texts = _docstrings(section)
        for name, key in keys_of_fields(section).items():
            if name in texts:
                keys[key]["description"] = texts[name]
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def _docstrings(section: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's attributes, which only the source has."""
    tree = ast.parse(inspect.getsource(sys.modules[section.__module__]))
    [body] = (one.body for one in tree.body if isinstance(one, ast.ClassDef) and one.name == section.__name__)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _for_toml(schema: Any) -> Any:
    """Return a schema without null, which TOML does not have, and without titles, which Pydantic makes of names."""
    if isinstance(schema, list):
        return [_for_toml(one) for one in schema if one != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: _for_toml(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and (value is None or isinstance(value, dict) or (isinstance(value, list) and value)))
    }
    return made | made.pop("anyOf")[0] if len(made.get("anyOf", ())) == 1 else made


def example_text() -> str:
    """Return the text of `configs/full.toml`, which an installed package has beside its modules."""
    package = Path(__file__).parent
    installed = package / "full.toml"
    path = installed if installed.exists() else package.parents[1] / "configs" / "full.toml"
    return re.sub(r"\A#:schema .*\n", "", path.read_text(encoding="utf-8"))
