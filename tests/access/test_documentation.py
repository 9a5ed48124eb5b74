"""`docs/access.md`: its example has no faults, and its documents are those of the hook."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from pydantic import TypeAdapter

from fanout.access.http_hook import Question, _content, _read_answer
from fanout.access.settings import AccessConfig, find_access_faults

PAGE = (Path(__file__).parents[2] / "docs" / "access.md").read_text()
[EXAMPLE] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ADAPTER = TypeAdapter(AccessConfig)


def load(text: str) -> AccessConfig:
    """Read the section of a file."""
    return ADAPTER.validate_python(tomllib.loads(text)["access"])


def test_the_example_has_no_faults() -> None:
    """It can be copied."""
    config = load(EXAMPLE)
    assert find_access_faults(config) == []
    assert len(config.rules) == 6


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
