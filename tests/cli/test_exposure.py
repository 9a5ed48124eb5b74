"""The checklist of an exposed node: each line holds, or names the key and the remedy; the page has the same lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.cli.arguments.exposure import exposure_lines
from fanout.config import parse_config
from tests.cli.processes import run_fanout

OPEN = """
[node]
id = "edge-1"

[server]
listen = ["mqtt://0.0.0.0:1883"]

[http]
listen = "0.0.0.0:8080"

[pool]
listen = "10.0.0.1:9201"
peers = ["10.0.0.2:9201"]
token_file = "pool"

[[link]]
name = "plant"
primary = "mqtt://10.0.0.9:1883"

[[link.selector]]
filter = "plant/#"
"""
CLOSED = """
[node]
id = "edge-1"

[server]
listen = []
connections_per_address_max = 100

[[server.listener]]
address = "mqtts://0.0.0.0:8883"
certificate_file = "a.pem"
key_file = "a.key"

[access]
anonymous = "never"
password_file = "users"

[[access.rule]]
allow = "read"
filter = "plant/#"

[[access.reserved]]
client_id = "fanout-*"
user = "links"

[http]
listen = "127.0.0.1:8080"

[[link]]
name = "plant"
primary = "mqtts://10.0.0.9:8883"

[[link.selector]]
filter = "plant/#"
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "expose.md"


@pytest.mark.parametrize(("text", "is_open"), [(OPEN, True), (CLOSED, False)])
def test_each_line_is_open_or_holds(text: str, is_open: bool) -> None:
    """The last one is of files, which are checked where they are."""
    lines = exposure_lines(parse_config(text, path="edge.toml"), of_files=())
    assert [bool(line.faults) for line in lines] == [is_open] * 8 + [False]
    assert all(fault.hint and fault.key for line in lines for fault in line.faults)


def test_a_hook_that_only_knows_users_is_no_rule() -> None:
    """It must be asked to subscribe and to publish; files that are not looked at are no line."""
    hook = '[access.http]\nurl = "http://127.0.0.1:9000/"\n'
    rule = '[[access.rule]]\nallow = "read"\nfilter = "plant/#"\n'
    for actions, holds in (('["connect"]', False), ('["subscribe", "publish"]', True)):
        text = CLOSED.replace(rule, f"{hook}actions = {actions}\n")
        lines = exposure_lines(parse_config(text, path="edge.toml"), of_files=None)
        assert [line.promise for line in lines if line.faults] == ([] if holds else [lines[2].promise])
        assert "Files" not in lines[-1].promise


def test_the_page_has_the_lines_of_the_command() -> None:
    """In their order."""
    rows = [row.split("|")[1].strip() for row in PAGE.read_text().splitlines() if row.startswith("| ")][1:]
    assert rows == [line.promise for line in exposure_lines(parse_config(CLOSED, path="edge.toml"), of_files=())]


def test_the_command_ends_with_2_for_an_open_node(tmp_path: Path) -> None:
    """And says what to do about each line."""
    config = tmp_path / "edge.toml"
    config.write_text(
        OPEN.replace('token_file = "pool"\n', 'certificate_file = "a"\nkey_file = "b"\nclient_ca_file = "c"\n')
    )
    run = run_fanout("check", str(config), "--exposed", "--no-files")
    assert run.returncode == 2
    assert run.stdout.count("\nopen ") + run.stdout.startswith("open ") == 7
    assert "ok   The pool is for members, over TLS" in run.stdout
    assert 'Write anonymous = "never"' in run.stdout
    config.write_text(CLOSED)
    assert run_fanout("check", str(config), "--exposed", "--no-files").returncode == 0
