"""`[pool]`: who may be a member, and what the section asks of the rest of a configuration."""

from __future__ import annotations

import pytest

from fanout.config import Address, PoolConfig, parse_config
from tests.config.faults import LINK, NODE, SELECTOR, SERVER, faults_of

SECONDARY = NODE + SERVER + LINK + SELECTOR


def test_a_pool_of_this_machine_needs_no_token() -> None:
    """On loopback a list of addresses is enough; names and IPv6 are addresses too."""
    text = (
        f'{SECONDARY}[pool]\nlisten = "127.0.0.2:9201"\npeers = ["localhost:9202", "[::1]:9203"]\ndns = "edges:9201"\n'
    )
    assert parse_config(text, path="edge.toml").pool == PoolConfig(
        listen=Address("http", "127.0.0.2", 9201),
        peers=(Address("http", "localhost", 9202), Address("http", "::1", 9203)),
        dns=Address("http", "edges", 9201),
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "edge-1.plant", "[::]"])
def test_off_loopback_members_must_show_who_they_are(host: str) -> None:
    """Without token and certificates it is refused, with the reason and what to do; with either it is not."""
    text = f'{SECONDARY}[pool]\nlisten = "{host}:9201"\n'
    [(key, problem, hint)] = faults_of(text)
    assert key == "pool.listen"
    assert problem == f"{host}:9201 is reached from other machines, and anybody there could pretend to be a member"
    assert hint == "Add token_file, or certificate_file, key_file and client_ca_file; or listen on 127.0.0.1."
    assert faults_of(f'{text}token_file = "secrets/pool"\n') == []
    assert faults_of(f'{text}certificate_file = "a.pem"\nkey_file = "a.key"\nclient_ca_file = "ca.pem"\n') == []


def test_certificates_come_with_all_that_they_need() -> None:
    """A certificate without a CA would let in nobody, or everybody."""
    found = faults_of(f'{SECONDARY}[pool]\nlisten = "10.0.0.7:9201"\ncertificate_file = "a.pem"\n')
    assert {key: problem for key, problem, _ in found} == dict.fromkeys(
        ("pool.key_file", "pool.client_ca_file"),
        "is missing, and certificate_file needs it: members show each other certificates of one CA",
    )


@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        (f"{NODE}{SERVER}[pool]\n", "pool", "a pool is of secondaries, and this node replicates no primary"),
        (
            f"{NODE}[log]\n{LINK}{SELECTOR}[pool]\n",
            "pool",
            "a pool is of secondaries, and this node serves no clients",
        ),
        (
            f"{SECONDARY}[pool]\nping_interval_s = 1\n",
            "pool.suspect_after_s",
            "0.5 is not more than ping_interval_s, 1, and every member would be suspect between two answers",
        ),
        (
            f'{SECONDARY}[pool]\npeers = ["a:1", "b:1"]\nmembers_max = 1\n',
            "pool.peers",
            "it has 2 addresses, and members_max is 1",
        ),
        (f'{SECONDARY}[pool]\npeers = ["a:0"]\n', "pool.peers[0]", '"a:0" has the port 0'),
        (
            f'{NODE}[server]\nlisten = ["mqtt://127.0.0.1:9201"]\n{LINK}{SELECTOR}[pool]\n',
            "pool.listen",
            "127.0.0.1:9201 cannot be opened beside server.listen[0], 127.0.0.1:9201",
        ),
    ],
)
def test_what_does_not_fit_is_told(text: str, key: str, problem: str) -> None:
    """Each fault names its key, and what to do."""
    [(found_key, found_problem, hint)] = faults_of(text)
    assert (found_key, found_problem) == (key, problem)
    assert hint
