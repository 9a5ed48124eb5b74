"""`docs/access.md`: its configurations load, and it shows every key with its default."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from fanout.access.http_hook import Question, _content, _read_answer
from fanout.access.settings import AccessConfig, HookConfig, RuleSection, find_access_faults

PAGE = (Path(__file__).parents[2] / "docs" / "access.md").read_text()
EXAMPLE, EVERY_KEY = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
OPTIONAL_LINE = re.compile(r"^# (\w+ = \S.*)$", re.MULTILINE)
ADAPTER = TypeAdapter(AccessConfig)


def load(text: str) -> AccessConfig:
    """Read the section of a file."""
    return ADAPTER.validate_python(tomllib.loads(text)["access"])


def test_the_example_has_no_faults() -> None:
    """It can be copied."""
    config = load(EXAMPLE)
    assert find_access_faults(config) == []
    assert len(config.rules) == 6


@pytest.mark.parametrize(("section", "kind"), [((), AccessConfig), (("http",), HookConfig), (("rule", 0), RuleSection)])
def test_every_key_is_shown_with_its_default(section: tuple[str | int, ...], kind: type) -> None:
    """None is missing, in the order of the code; a key without default is marked as required or as optional."""
    shown: Any = tomllib.loads(EVERY_KEY)["access"]
    optional: Any = tomllib.loads(OPTIONAL_LINE.sub(r"\1", EVERY_KEY))["access"]
    for part in section:
        shown, optional = shown[part], optional[part]
    fields = {field.name: field.default for field in dataclasses.fields(kind) if field.name not in ("http", "rules")}
    assert [key for key in optional if key not in ("http", "rule")] == list(fields)
    for key, default in fields.items():
        if default is None:
            assert key not in shown
        elif default is dataclasses.MISSING:
            assert re.search(rf"^{key} = .*# required", EVERY_KEY, re.MULTILINE)
        else:
            assert shown[key] == (list(default) if isinstance(default, tuple) else default), key


def test_the_documents_of_the_hook_are_those_of_the_code() -> None:
    """The questions have these keys, and the answer is one."""
    *questions, answer = [
        json.loads(line) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
    ]
    for shown in questions:
        question = Question(
            shown["action"], shown["client_id"], shown["username"], shown["address"], shown.get("topic", "")
        )
        password = shown.get("password")
        assert json.loads(_content(question, password and password.encode())) == shown
    connect = Question("connect", "s1", "bob", "")
    assert _read_answer(json.dumps(answer).encode(), connect).user == "bob@plant"
