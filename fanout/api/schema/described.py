"""Models whose docstrings are the descriptions in the schema of the interface.

Pydantic can do this too (`use_attribute_docstrings`), but then reads the source of each class when it is imported: a
sixth of the time until a node listens. Here the source is read when a schema is asked for.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

__all__ = ["Described"]


class Described(BaseModel):
    """A frozen model; a docstring below a field describes it in the schema."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the docstrings of the fields, by the names of the fields."""
        found: dict[str, str] = {}
        for base in reversed(cls.__mro__[: cls.__mro__.index(Described)]):
            found |= _docstrings_in(base.__module__).get(base.__name__, {})
        return found

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties: dict[str, Any] = handler.resolve_ref_schema(schema).get("properties", {})
        for name, description in cls.descriptions().items():
            if name in properties:
                properties[name].setdefault("description", description)
        return schema


@functools.cache
def _docstrings_in(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of the fields of each class of a module."""
    classes = [
        each for each in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(each, ast.ClassDef)
    ]
    return {
        declared.name: {
            field.target.id: inspect.cleandoc(docstring.value.value)
            for field, docstring in itertools.pairwise(declared.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)
            if isinstance(docstring.value.value, str)
        }
        for declared in classes
    }
