"""The page of access: its example has no faults and lets a node replicate, its documents are those of the hook."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from pydantic import TypeAdapter

from fanout.access.http_hook import Question, _content, _read_answer
from fanout.access.identity import Identity
from fanout.access.rules import RuleSet
from fanout.chain.readiness_notice import READINESS_TOPIC
from fanout.config.access import AccessConfig, find_access_faults, rules_of
from fanout.link.protocol.control_channel import ControlChannel
from fanout.link.snapshot.capability_check import RETAINED_COUNT, SERVER_SENTINEL

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "access.md").read_text()
[EXAMPLE] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ADAPTER = TypeAdapter(AccessConfig)


def load(text: str) -> AccessConfig:
    """Read the section of a file."""
    return ADAPTER.validate_python(tomllib.loads(text)["access"])


def test_the_example_has_no_faults() -> None:
    """It can be copied."""
    config = load(EXAMPLE)
    assert find_access_faults(config) == []
    assert len(config.rules) == 8


def test_the_example_lets_another_node_replicate() -> None:
    """A client with the user `edge` gets the set, the readiness notice, the sentinels, and its own messages back."""
    rights = RuleSet(rules_of(load(EXAMPLE))).rights(Identity(client_id="edge-1-plant", user="edge"))
    control = ControlChannel("fanout/control", node_id="edge-1", link="plant", nonce=1, heartbeat_s=5)
    system = (READINESS_TOPIC, SERVER_SENTINEL, b"$SYS/+/version", RETAINED_COUNT)
    reads = (b"plant/#", *system, control.topic, control.own_filter)
    assert {one: rights.explain(one) for one in reads} == dict.fromkeys(reads)
    assert rights.may_publish(control.topic)
    assert rights.may_publish(control.sentinel_topic)


def test_the_example_keeps_setpoints_from_others() -> None:
    """A client reads what is no setpoint; `plant/#` is refused to it, and the rule that denies is named."""
    rules = rules_of(load(EXAMPLE))
    rights = RuleSet(rules).rights(Identity(client_id="c", user="alice"))
    assert rights.may_subscribe(b"plant/+/state")
    denied = rights.explain(b"plant/#")
    assert denied is not None
    assert denied.rule is not None
    assert rules[denied.rule].filter == "plant/+/setpoint/#"


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
