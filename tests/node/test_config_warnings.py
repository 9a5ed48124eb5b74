"""What is surely not meant: listeners through which nobody can connect."""

from __future__ import annotations

import pytest

from fanout.config import parse_config
from fanout.node.config_warnings import find_config_warnings

OPEN = 'listen = ["mqtt://0.0.0.0:1883"]\n'
TABLE = """listen = []
[[server.listener]]
address = "{}"
"""
TLS = TABLE.format("mqtts://10.0.0.7:8883") + 'certificate_file = "a"\nkey_file = "b"\n'
HOOK = '[access.http]\nurl = "http://127.0.0.1:9000/"\n'


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ("", []),  # loopback, which is the default
        ('listen = ["mqtt://localhost:1883", "ws://[::1]:80", "unix:///run/mqtt.sock"]\n', []),
        (OPEN, ["server.listen[0]"]),
        (
            'listen = ["mqtt://127.0.0.1:1883", "mqtt://[::]:1883", "ws://edge:80"]\n',
            ["server.listen[1]", "server.listen[2]"],
        ),
        (OPEN + '[access]\nanonymous = "always"\n', []),
        (OPEN + '[access]\npassword_file = "users"\n', []),
        (OPEN + HOOK, []),
        (OPEN + HOOK + 'actions = ["publish"]\n', ["server.listen[0]"]),
        ('[access]\nanonymous = "never"\n', ["server.listen[0]"]),
        (TLS, ["server.listener[0].address"]),
        (TLS + 'client_ca_file = "c"\n', []),
        (TABLE.format("mqtt://127.0.0.1:1883"), []),
        (
            TABLE.format("mqtt://127.0.0.1:1883") + 'proxy_protocol_from = ["127.0.0.1"]\n',
            ["server.listener[0].address"],
        ),
    ],
)
def test_listeners_through_which_nobody_can_connect(settings: str, keys: list[str]) -> None:
    """Neither users nor certificates nor a hook, and anonymous clients are not let in there."""
    config = parse_config(f'[node]\nid = "a"\n[server]\n{settings}', path="a.toml", role="primary")
    assert [warning.key for warning in find_config_warnings(config)] == keys


def test_selectors_whose_missing_topics_are_not_announced() -> None:
    """They keep out what the primary may have; without `announce_missing` there is nothing to tell."""
    link = '[[link]]\nname = "l"\nprimary = "mqtt://a"\n{}[[link.selector]]\nfilter = "b"\nmax_payload = 1\n'
    text = f'[node]\nid = "a"\n[server]\n{link}[[link.selector]]\nfilter = "c"\n'
    found = {
        keys: [
            each.key for each in find_config_warnings(parse_config(text.format(keys), path="a.toml", role="secondary"))
        ]
        for keys in ("", "announce_missing = true\n")
    }
    assert found == {"": [], "announce_missing = true\n": ["link[0].selector[0].filter"]}


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ('primary = "mqtts://broker"\npassword_file = "p"\n', {}),
        ('primary = ["mqtt://127.0.0.1", "mqtt://localhost", "ws://[::1]"]\npassword_env = "P"\n', {}),
        ('primary = "mqtt://broker"\nusername = "u"\n', {}),
        (
            'primary = ["mqtts://broker", "mqtt://broker"]\npassword_file = "p"\n',
            {
                "link[0].primary": 'the link "l": its password goes to mqtt://broker:1883 unencrypted, and anybody on '
                "the way can read it. Write mqtts:// and the port of its listener with TLS."
            },
        ),
        (
            'primary = ["mqtts://broker", "mqtt://127.0.0.1", "ws://other"]\n',
            {
                "link[0].primary": 'the link "l": it falls back to ws://other:80, unencrypted, if somebody cuts it off '
                "from the others. Write wss:// and the port of its listener with TLS."
            },
        ),
        (
            'primary = "wss://broker"\ntls_insecure = true\n',
            {
                "link[0].tls_insecure": 'the link "l" does not verify its primary: anybody on the way can pretend to '
                "be it, read and change everything, and take the password. Remove the line, and set ca_file, or "
                "server_certificate_sha256 to the fingerprint of its certificate."
            },
        ),
    ],
)
def test_links_that_anybody_can_listen_to(keys: str, found: dict[str, str]) -> None:
    """A password that leaves the machine without TLS, and a primary that is not verified."""
    text = f'[node]\nid = "a"\n[server]\n[[link]]\nname = "l"\n{keys}[[link.selector]]\nfilter = "b"\n'
    warnings = find_config_warnings(parse_config(text, path="a.toml", role="secondary"))
    assert {each.key: f"{each.problem}. {each.hint}" for each in warnings} == found


def test_a_tap_serves_nobody_anyway() -> None:
    """Without [server] there is nothing to warn of."""
    text = '[node]\nid = "a"\n[log]\n[[link]]\nname = "l"\nprimary = "mqtt://a"\n[[link.selector]]\nfilter = "#"\n'
    assert find_config_warnings(parse_config(text, path="a.toml", role="tap")) == []
