"""Options of the benchmarks that make no sense: an error that names the option, before any server is started."""

from __future__ import annotations

import pytest

from bench.__main__ import command_line, perform


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("takeover --copies maybe", "argument --copies: there is no maybe; choose from on, off"),
        ("attack --port 99999", "argument --port: 99999 is too large; the largest number is 65535"),
        ("attack --port 1 --ca-file /nowhere", "argument --ca-file: there is no file /nowhere"),
        ("attack --http-port 8080", "--http-port is of a started node: give its --port too"),
        ("takeover --members 1", "argument --members: 1 is too small; the smallest number is 2"),
        ("takeover --seconds nan", "argument --seconds: nan is no number above 0"),
        ("takeover --sessions x", "argument --sessions: 'x' is no whole number"),
        ("roaming --faults kill,storm", "argument --faults: there is no storm; choose from hold"),
        ("roaming --seeds 0", "argument --seeds: 0 is too small"),
        ("fanout --pool-copies sideways", "argument --pool-copies: there is no sideways; choose from on, off"),
        ("fanout --subscribers 1,0", "argument --subscribers: 0 is too small; the smallest number is 1"),
        ("fanout --subscribers 1,a", "argument --subscribers: 'a' is no whole number"),
        ("fanout --qos 1,2", "argument --qos: there is no 2; choose from 0, 1"),
        ("fanout --deliveries 0", "argument --deliveries: 0 is too small"),
        ("snapshot --topics x", "argument --topics: 'x' is no whole number"),
        ("slow --stalled -1", "argument --stalled: -1 is too small"),
        ("fanout --runs 0", "argument --runs: 0 is too small"),
    ],
)
def test_a_wrong_option_is_named(command: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what it may be."""
    with pytest.raises(SystemExit):
        perform(command.split())
    assert told in capsys.readouterr().err


def test_several_names_come_one_by_one() -> None:
    """In the order in which they were given, and none for an empty text."""
    parse = command_line().parse_args
    assert parse(["takeover"]).copies == ("on", "off")
    assert parse(["roaming", "--faults", ""]).faults == ()
