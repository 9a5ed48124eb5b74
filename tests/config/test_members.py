"""Several members of a pool on one machine: what each gets from the configuration that they share."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fanout.config import Address, MemberNumber, NodeConfig, make_pool_token
from fanout.config.loading import load_file
from fanout.errors import ConfigError
from tests.config.faults import LINK, NODE, SELECTOR, SERVER

SECONDARY = NODE + SERVER + "[http]\n[log]\n" + LINK + SELECTOR


def loaded(directory: Path, text: str, number: int = 2, count: int = 4) -> NodeConfig:
    """Return the configuration of one member."""
    path = directory / "edge.toml"
    path.write_text(text)
    return load_file(path, role="secondary", member=MemberNumber(number, count)).config


def test_each_member_has_names_ports_and_directories_of_its_own(tmp_path: Path) -> None:
    """All else is shared: the listeners, the primary, the limits."""
    member = loaded(tmp_path, SECONDARY.replace("[http]", '[http]\nagent_listen = "127.0.0.1:8090"'))
    assert member.node.id == "edge-1-2"
    assert member.node.data_directory == Path("var/lib/edge-1-2")
    assert member.log is not None
    assert member.log.directory == Path("var/replication-log/edge-1-2")
    assert member.http is not None
    assert (member.http.listen.port, member.http.agent_listen) == (8081, Address("http", "127.0.0.1", 8091))
    assert member.links[0].client_id == "fanout-edge-1-2-plant"
    assert member.server is not None
    assert [(str(one.address), one.share_port) for one in member.server.listeners] == [("mqtt://127.0.0.1:1884", True)]
    assert member.pool is not None
    assert member.pool.listen == Address("http", "127.0.0.1", 9202)
    assert [peer.authority for peer in member.pool.peers] == [f"127.0.0.1:{port}" for port in range(9201, 9205)]
    assert member.pool.token_file == Path("var/lib/pool-token")


def test_members_of_several_machines_make_one_pool(tmp_path: Path) -> None:
    """Those of this machine join the peers of the file; a given token and Client Identifier stay."""
    pool = '[pool]\nlisten = "0.0.0.0:9301"\npeers = ["10.0.0.2:9301"]\ntoken_file = "secrets/pool"\n'
    text = SECONDARY.replace(LINK, f'{pool}{LINK}client_id = "mine"\n')
    member = loaded(tmp_path, text, number=1, count=2)
    assert member.pool is not None
    assert [peer.authority for peer in member.pool.peers] == ["127.0.0.1:9301", "127.0.0.1:9302", "10.0.0.2:9301"]
    assert member.pool.token_file == Path("secrets/pool")
    assert member.links[0].client_id == "mine-1"


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        (
            SECONDARY.replace(SERVER, '[server]\nlisten = ["unix:///run/mqtt.sock"]\n'),
            "server.listen",
            "unix:///run/mqtt.sock is no port that 4 members can share",
        ),
        (
            SECONDARY.replace("[http]", '[http]\nagent_listen = "127.0.0.1:8082"'),
            "http.agent_listen",
            "4 members listen at the ports 8082 to 8085, and http.listen has one of them",
        ),
        (
            SECONDARY.replace("[http]", '[http]\nlisten = "127.0.0.1:65533"'),
            "http.listen",
            "4 members listen at the ports 65533 to 65536, of which the last is no port",
        ),
        (
            SECONDARY.replace("[http]", '[pool]\ndns = "edges:9201"\n[http]'),
            "pool.dns",
            "it finds one member at each address, and 4 are on this machine",
        ),
        (
            SECONDARY.replace("[http]", "[pool]\nmembers_max = 3\n[http]"),
            "pool.peers",
            "it has 4 addresses, and members_max is 3",
        ),
        (
            SECONDARY.replace("edge-1", "e" * 63),
            "node.id",
            "members append their number, and it has more than 62 characters",
        ),
    ],
)
def test_what_members_cannot_share_is_told(tmp_path: Path, text: str, key: str, problem: str) -> None:
    """Each fault names the key of the file."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)
    assert [(fault.key, fault.problem) for fault in caught.value.faults] == [(key, problem)]


def test_the_token_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    """All members show the same one; a file that the operator names is never written."""
    text = SECONDARY.replace(NODE, f'{NODE}data_directory = "{tmp_path}"\n')
    token = tmp_path / "pool-token"
    make_pool_token(loaded(tmp_path, text, number=1))
    made = token.read_text()
    make_pool_token(loaded(tmp_path, text, number=2))
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == (made, 0o600)
    assert len(made) > 40
    named = text.replace("[http]", f'[pool]\ntoken_file = "{tmp_path}/own"\n[http]')
    make_pool_token(loaded(tmp_path, named))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edge.toml", "pool-token"]
