"""Tests of `fanout.config.settings` and of the files in `configs/`, which must agree with it."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fanout.config import (
    AccessConfig,
    Address,
    HttpConfig,
    LogConfig,
    RetainedConfig,
    Role,
    ServerConfig,
    SessionsConfig,
    load_config,
    parse_config,
)
from fanout.config.settings import SelectorSection
from fanout.config.translation import SECTIONS, section_keys
from fanout.selection import Selector
from tests.config.faults import LINK, NODE, SELECTOR, SERVER

CONFIGS = Path(__file__).parents[2] / "configs"
FULL = (CONFIGS / "full.toml").read_text()
SUBSECTIONS = sum("." in section for section in SECTIONS)
OPTIONAL_LINE = re.compile(r"^# (\w+ = \S.*)$", re.MULTILINE)

WITH_TLS = ("certificate_file", "key_file")
"""Keys that have no default, and are needed by the listener that is shown."""

# The configuration contract, word for word.
CONTRACT = """
[node]
id = "edge-1"

[server]
listen = ["mqtt://127.0.0.1:1884"]

[http]
listen = "127.0.0.1:8080"

[log]
directory = "var/replication-log"

[[link]]
name = "plant"
primary = "mqtt://127.0.0.1:1883"     # or a list of addresses of the same primary
username = "edge"                      # optional; password_file or password_env, never the password itself
[[link.selector]]
filter = "plant/#"
exclude = ["plant/debug/#"]
qos = 1
prefix = ""
writes = "reject"
"""


def sections_of(text: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a file by section name."""
    data = tomllib.loads(text)
    [link] = data["link"]
    [selector] = link["selector"]
    [listener] = data["server"]["listener"]
    single = {name: data[name] for name in ("node", "server", "http", "pool", "log", "retained", "sessions")}
    access = data["access"]
    [rule], [reserved], [quota] = access["rule"], access["reserved"], access["quota"]
    log = {"log.ship": data["log"]["ship"]}
    tables = {"access.quota": quota, "access.reserved": reserved, "access.rule": rule}
    guarded = {"access": access, "access.http": access["http"], **tables}
    return {"": data, **single, **log, "server.listener": listener, **guarded, "link": link, "link.selector": selector}


def as_in_file(default: object) -> object:
    """Return a default as the file spells it."""
    if isinstance(default, tuple):
        return [as_in_file(each) for each in default]
    if isinstance(default, Address):
        return default.authority if default.scheme == "http" else str(default)
    return str(default) if isinstance(default, Path) else default


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("primary.toml", "primary"),
        ("secondary.toml", "secondary"),
        ("tap.toml", "tap"),
        ("full.toml", "secondary"),
        ("hub.toml", "secondary"),
        ("members.toml", "secondary"),
    ],
)
def test_the_files_that_come_with_fanout_load(name: str, role: Role) -> None:
    """Each can be started as it is."""
    load_config(CONFIGS / name, role=role)


def test_no_file_is_without_a_test() -> None:
    """A new configuration in `configs/` gets its line above."""
    assert sorted(path.name for path in CONFIGS.glob("*.toml")) == [
        "full.toml",
        "hub.toml",
        "members.toml",
        "primary.toml",
        "secondary.toml",
        "tap.toml",
    ]


def test_the_files_work_side_by_side() -> None:
    """A primary, a secondary and a tap on one machine share no port, identifier or directory."""
    primary, secondary, tap = (load_config(CONFIGS / f"{name}.toml") for name in ("primary", "secondary", "tap"))
    nodes = (primary, secondary, tap)
    assert len({config.node.id for config in nodes}) == len({config.node.data_directory for config in nodes}) == 3
    assert len({config.log.directory for config in nodes if config.log}) == 3
    assert primary.server is not None
    assert primary.http is not None
    assert secondary.server is not None
    assert secondary.http is not None
    ports = [
        (*config.server.listen, config.http.listen) for config in (primary, secondary) if config.server and config.http
    ]
    assert [[address.port for address in each] for each in ports] == [[1883, 8079], [1884, 8080]]
    assert secondary.links[0].primaries == tap.links[0].primaries == primary.server.listen
    assert secondary.links[0].selectors == tap.links[0].selectors


def test_the_secondary_is_the_contract() -> None:
    """`secondary.toml` says what the contract says; the optional user name is a comment."""
    assert load_config(CONFIGS / "secondary.toml") == parse_config(
        CONTRACT.replace("username =", "# username ="), path="contract"
    )
    assert parse_config(CONTRACT, path="contract", role="secondary").links[0].username == "edge"


@pytest.mark.parametrize("section", SECTIONS)
def test_full_shows_every_key_with_its_default(section: str) -> None:
    """No key is missing or unknown, and what is shown is what holds without the key."""
    shown = sections_of(FULL)[section]
    optional = sections_of(OPTIONAL_LINE.sub(r"\1", FULL))[section]
    keys = section_keys(section)
    tables = [key for key in keys if key == "link" or f"{section}.{key}" in SECTIONS]  # which stand last in TOML
    assert list(optional) == [key for key in keys if key not in tables] + tables
    for key, default in keys.items():
        if (default is None and not section) or key in tables:
            assert key in shown  # a section that is off unless written
        elif (section, key) == ("access.rule", "allow"):
            assert default is None  # but a rule without it, and without deny, is none
        elif (section, key) == ("access.reserved", "user"):
            assert default == ""  # which reserves nothing
        elif default is None:
            assert (key in shown) is (section == "server.listener" and key in WITH_TLS)
        elif (
            default is not dataclasses.MISSING
            and key not in tables
            and default not in (AccessConfig(), RetainedConfig(), SessionsConfig())
        ):
            assert shown[key] == as_in_file(default), key


def test_full_explains_every_key() -> None:
    """Each line has a comment; seconds and bytes are named as such, required keys are marked."""
    required = {
        key for section in SECTIONS for key, default in section_keys(section).items() if default is dataclasses.MISSING
    }
    lines = [line for line in OPTIONAL_LINE.sub(r"\1", FULL).splitlines() if re.match(r"\w+ = ", line)]
    assert len(lines) == sum(len(section_keys(section)) for section in SECTIONS if section) - SUBSECTIONS
    for line in lines:
        key, _, rest = line.partition(" = ")
        _, mark, comment = rest.partition("  # ")
        assert mark, line
        assert comment.strip(), line
        assert not key.endswith("_s") or key.endswith("_per_s") or "seconds" in comment, line
        assert "bytes" not in key or "bytes" in comment, line
        assert (key in required) is comment.startswith("required"), line


def test_the_optional_lines_of_full_are_right() -> None:
    """Each of them may be used as it is shown, though not all together."""
    for line in OPTIONAL_LINE.findall(FULL):
        key, text = line.partition(" = ")[0], FULL.replace(f"# {line}", line)
        if key == "deny":
            text = text.replace("\nallow = ", "\n# allow = ")
        if key in {"count_key_file", "audit_password_file"}:  # they are of no use alone
            text = re.sub(r"\n# (count_url|audit_username) = ", r"\n\1 = ", text)
        section = re.findall(r"^\[+([a-z.]+)\]", FULL.partition(f"# {line}")[0], re.MULTILINE)[-1]
        if section == "pool" and key not in ("token_file", "dns"):  # they are of no use alone
            text = re.sub(r"\n# ((?:certificate|key|client_ca)_file = \"tls/(?:edge-1|members))", r"\n\1", text)
        if section == "http" and key in ("certificate_file", "key_file"):
            text = re.sub(r"\n# ((?:certificate|key)_file = \"tls/http)", r"\n\1", text)
        if key in ("client_certificate_file", "client_key_file"):  # nor are these
            text = re.sub(r"\n# (client_(?:certificate|key)_file = \"tls/edge)", r"\n\1", text)
        config = parse_config(text, path="full.toml", role="secondary")
        assert config.server is not None
        place = {
            "server": config.server,
            "server.listener": config.server.listener_tables[0],
            "link": config.links[0],
            "access": config.access,
            "access.quota": config.access.quotas[0],
            "access.reserved": config.access.reserved[0],
            "access.rule": config.access.rules[0],
            "http": config.http,
            "pool": config.pool,
        }[section]
        assert str(as_in_file(getattr(place, key))) in line


def test_sections_without_keys_are_on_with_their_defaults() -> None:
    """An empty section is not the same as none."""
    config = parse_config(f"{NODE}[server]\n[http]\n[log]\n", path="edge.toml")
    assert (config.server, config.http, config.log) == (ServerConfig(), HttpConfig(), LogConfig())
    config = parse_config(f"{NODE}[log]\n{LINK}{SELECTOR}", path="edge.toml")
    assert (config.server, config.http) == (None, None)


def test_a_selector_has_the_defaults_of_the_core() -> None:
    """The section of the file and the selector that it becomes are the same keys and defaults."""
    ours = {field.name: field.default for field in dataclasses.fields(SelectorSection)}
    core = {field.name: field.default for field in dataclasses.fields(Selector) if field.init}
    assert ours == core


def test_a_loaded_selector_is_what_the_file_says() -> None:
    """Every key of the section reaches the selector."""
    text = 'exclude = ["plant/a/+", "plant/b"]\nqos = 2\nprefix = "p/"\nwrites = "forward"\n'
    text += 'content = ["json", "text"]\nretained_only = true\nmax_payload = 512\nmin_topics = 3\n'
    config = parse_config(NODE + SERVER + LINK + SELECTOR + text, path="edge.toml")
    assert config.links[0].selectors == (
        Selector(
            "plant/#",
            ("plant/a/+", "plant/b"),
            2,
            "p/",
            "forward",
            content=("json", "text"),
            retained_only=True,
            max_payload=512,
            min_topics=3,
        ),
    )


def test_a_loaded_link_is_what_the_file_says() -> None:
    """Addresses and paths are read, and a whole number does for seconds."""
    text = LINK.replace('"mqtt://primary-host"', '["mqtt://a", "mqtt://b:1885"]')
    text += 'username = "u"\npassword_file = "secrets/p"\nversion = 4\nretain_policy = "keep"\nheartbeat_s = 0\n'
    [link] = parse_config(NODE + SERVER + text + SELECTOR, path="edge.toml").links
    assert link.primaries == (Address("mqtt", "a", 1883), Address("mqtt", "b", 1885))
    assert link.password_file == Path("secrets/p")
    assert (link.username, link.version, link.retain_policy) == ("u", 4, "keep")
    assert isinstance(link.heartbeat_s, float)
    assert link.heartbeat_s == 0
