"""Every benchmark, tiny, against the real peers: the figures are there and agree with each other. None must be fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.processes import find_mosquitto
from tests.support.benches import run_bench

pytestmark = [
    pytest.mark.mosquitto,
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed; scripts/test installs it"),
]


def measure(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run one benchmark once on each side and return its results; every delivery must have arrived."""
    path = tmp_path / "results.json"
    done = run_bench(*arguments, "--runs", "1", "--json", path)
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    assert document["bench"] == arguments[0]
    assert document["machine"]["mosquitto"]
    results: list[dict[str, Any]] = document["results"]
    for result in results:
        assert len(result["runs"]) == 1
        for run in result["runs"]:
            assert run["delivered"] == run["expected"] > 0
        for ask in result["asked"]:
            assert f"{ask['what']} " in done.stdout
    return results


def servers(results: list[dict[str, Any]]) -> list[str]:
    """Return which servers the results are of, in order."""
    return [result["server"] for result in results]


def test_fanout_measures_each_server_at_each_qos(tmp_path: Path) -> None:
    """With and without log, the bridge and the load generator's limit; the asked ratio follows from the figures."""
    options = ["--subscribers", "10", "--deliveries", "1000", "--messages-min", "300", "--log", "on,off"]
    results = measure(tmp_path, "fanout", *options, "--self-test")

    assert servers(results) == ["ours", "ours, no log", "bridge", "load generator's limit"] * 2
    assert [result["messages"] for result in results] == [300] * 8
    for at in range(0, len(results), 4):
        ours, bare, bridge, limit = results[at : at + 4]
        for ask, peer in zip(ours["asked"], (bridge, bare), strict=True):
            assert ask["reached"] == pytest.approx(ours["delivered/s"] / peer["delivered/s"])
            assert ask["met"] == (ask["reached"] >= ask["at_least"])
        assert ours["asked"][1]["at_least"] == 0.9
        assert limit["asked"][0]["reached"] > 0
    assert [result["asked"][0]["at_least"] for result in results[::4]] == [5, 3]


_STAND_IN = r"""#!{python}
import os, re, sys
text = open(sys.argv[sys.argv.index("--config-file") + 1]).read()
listen, bridge = (dict(line.split(maxsplit=1) for line in block.strip().splitlines())
                  for block in re.findall(r"{{\n(.*?)}}", text, re.DOTALL))
topic, qos = bridge["subscribe"].split()
config = sys.argv[0] + ".conf"
with open(config, "w") as file:
    print("user root\nallow_anonymous true\nlistener", listen["port"], listen["inet4_bind_address"], file=file)
    print("connection", bridge["clientid_prefix"], file=file)
    print("address", bridge["address"] + ":" + bridge["port"], file=file)
    print("topic", topic, "in", qos, file=file)
os.execv({mosquitto!r}, ["mosquitto", "-c", config])
"""


def test_a_flashmq_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes figures without it for figures beside it."""
    monkeypatch.setenv("FLASHMQ", str(tmp_path / "flashmq"))
    with pytest.raises(RuntimeError, match=f"FLASHMQ names '{tmp_path / 'flashmq'}', which is no program"):
        run_bench("light", "--runs", "1")


def test_qos2_is_measured_alone_in_a_pool_and_on_disk(tmp_path: Path) -> None:
    """Every handshake comes to its end, and a member asks nobody about its sessions meanwhile."""
    options = ["--subscribers", "2", "--publishers", "2", "--messages", "100"]
    results = measure(tmp_path, "qos2", *options)

    assert servers(results) == ["alone", "member of a pool", "values on disk", "sessions on disk too"]
    alone, member, values, sessions = results
    assert member["asked"][0]["reached"] == pytest.approx(member["messages/s"] / alone["messages/s"])
    assert sessions["asked"][0]["reached"] == pytest.approx(sessions["messages/s"] / values["messages/s"])
    assert [result["calls to members"] for result in results] == [0, 0, 0, 0]


@pytest.mark.long
@pytest.mark.spark
def test_reports_are_measured_beside_a_bare_script(tmp_path: Path) -> None:
    """On logs with stamps and without; the asked ratios follow from the figures."""
    path = tmp_path / "results.json"
    done = run_bench("report-cost", "--rows", "20000", "--runs", "1", "--json", path)
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())["results"]
    assert [(one["logs"], one["server"]) for one in results] == [
        (kind, server) for kind in ("stamped", "counted") for server in ("script", "summary", "all")
    ]
    for script, *reports in (results[:3], results[3:]):
        for one in reports:
            by_cpu, by_time = one["asked"]
            assert by_cpu["reached"] == pytest.approx(one["CPU s"] / script["CPU s"])
            assert by_time["reached"] == pytest.approx(one["seconds"] / script["seconds"])


@pytest.mark.long
def test_a_thin_line_is_kept_up_with(tmp_path: Path) -> None:
    """Under four times of what the line carries a secondary stays ready, knows its lag, and ends with right values."""
    bound, far = measure(tmp_path, "thin-line", "--seconds", "6", "--samples", "3", "--no-before", "--no-others")

    assert [one["ready"] for one in (bound, far)] == ["3 of 3"] * 2
    assert [one["connections"] for one in (bound, far)] == [1, 1]
    assert all(one["wrong values"] == 0 < one["conflated"] for one in (bound, far))
    assert all(one["line kbit/s"] < 55 for one in (bound, far))
    assert all(isinstance(one["lag s, at most"], float) for one in (bound, far))


def test_sessions_are_there_after_a_stop_and_after_a_kill(tmp_path: Path) -> None:
    """The clients that are looked at get all that waited for them."""
    results = measure(tmp_path, "sessions", "--sessions", "20", "--messages", "10")
    assert [result["end"] for result in results] == ["SIGTERM", "SIGKILL"]
    assert all(result["start s"] > 0 for result in results)


@pytest.mark.long
def test_durable_sessions_are_measured_with_and_without_copies(tmp_path: Path) -> None:
    """At a member of a pool of two, in bursts one after another."""
    options = ["--pool-copies", "on,off", "--subscribers", "2", "--qos", "1", "--deliveries", "2000", "--bursts", "2"]
    with_copies, without = measure(tmp_path, "fanout", *options)
    assert servers([with_copies, without]) == ["pool, copies of sessions", "pool, no copies"]
    assert [result["messages"] for result in (with_copies, without)] == [4_000, 4_000]
    (ask,) = with_copies["asked"]
    assert ask["reached"] == pytest.approx(with_copies["delivered/s"] / without["delivered/s"])
    assert ask["at_least"] == 0.9


@pytest.mark.long
def test_durable_sessions_are_measured_with_and_without_a_disk(tmp_path: Path) -> None:
    """Their values are on disk in both."""
    options = ["--durable", "--subscribers", "2", "--qos", "1", "--deliveries", "2000"]
    results = measure(tmp_path, "fanout", *options)
    assert servers(results) == ["ours, values on disk", "ours, sessions on disk too"]


def test_steady_takes_latencies_and_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update reaches every subscriber, and latencies are in order. FlashMQ is a further peer where it is named.

    Its place is taken by a Mosquitto that gets the same settings, since no package index has a FlashMQ.
    """
    binary = tmp_path / "flashmq"
    binary.write_text(_STAND_IN.format(python=sys.executable, mosquitto=find_mosquitto()))
    binary.chmod(0o755)
    monkeypatch.setenv("FLASHMQ", str(binary))
    options = ["--subscribers", "5", "--samples", "2", "--rate", "500", "--seconds", "0.4"]
    results = measure(tmp_path, "steady", *options)

    assert servers(results) == ["ours", "bridge", "FlashMQ bridge"]
    for result in results:
        assert 0 < result["p50 ms"] <= result["p99 ms"] <= result["max ms"]
        assert result["runs"][0]["delivered"] == 1000
    assert [ask["what"] for ask in results[0]["asked"]] == ["p99, times the bridge's", "CPU, times the bridge's"]


@pytest.mark.long
def test_tls_to_the_primary_is_measured_beside_tcp(tmp_path: Path) -> None:
    """Of ours and of the bridge, each with a link of its own; the asked figures are those over TCP."""
    results = measure(tmp_path, "fanout", "--tls", "--subscribers", "1", "--qos", "0", "--deliveries", "2000")
    assert servers(results) == ["ours", "bridge", "ours, TLS", "bridge, TLS"]
    assert [len(result["asked"]) for result in results] == [1, 0, 0, 0]
    results = measure(tmp_path, "steady", "--tls", "--subscribers", "1", "--rate", "500", "--seconds", "0.4")
    assert servers(results) == ["ours", "bridge", "ours, TLS", "bridge, TLS"]


def test_light_compares_what_the_hop_adds(tmp_path: Path) -> None:
    """The primary itself is measured too, and what it takes is no part of the ratio; a bare hop shows the least."""
    results = measure(tmp_path, "light", "--rate", "50", "--seconds", "0.4")

    assert servers(results) == ["primary", "ours", "bridge", "bare hop in Python"]
    primary, ours, bridge, _ = (result["p50 ms"] for result in results)
    (ask,) = results[1]["asked"]
    if ours > primary < bridge:
        assert ask["reached"] == pytest.approx((ours - primary) / (bridge - primary))
    else:
        assert ask["reached"] is None
    assert all(result["runs"][0]["delivered"] == 20 for result in results)


def test_snapshot_counts_time_and_memory(tmp_path: Path) -> None:
    """Each size is started afresh, and a later subscriber gets every topic."""
    results = measure(tmp_path, "snapshot", "--topics", "1000,3000", "--rest", "0.1")

    assert servers(results) == ["ours", "bridge"] * 2
    assert [result["runs"][0]["delivered"] for result in results] == [1000, 1000, 3000, 3000]
    for result in results:
        assert 0 < result["listens after s"] < result["ready after s"]


@pytest.mark.parametrize("qos", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_join_lets_a_crowd_in_while_updates_go_on(tmp_path: Path, qos: str) -> None:
    """Every subscriber that joins gets every retained message, and live updates were timed meanwhile."""
    results = measure(tmp_path, "join", "--subscribers", "4", "--topics", "500", "--qos", qos)

    assert servers(results) == ["ours", "bridge"]
    for result in results:
        assert result["runs"][0]["delivered"] == 2000
        assert result["delivered/s"] == pytest.approx(2000 / result["all have all after s"])
        assert 0 < result["live p50 ms"] <= result["live p99 ms"]
    assert results[0]["asked"][0]["reached"] == pytest.approx(
        results[1]["all have all after s"] / results[0]["all have all after s"]
    )


def test_slow_subscribers_are_left_out_of_the_count(tmp_path: Path) -> None:
    """The quick ones get everything, with slow ones in the place of others and without."""
    options = ["--subscribers", "6", "--stalled", "1", "--half-speed", "2", "--messages", "200"]
    results = measure(tmp_path, "slow", *options)

    assert servers(results) == ["ours", "ours with slow ones", "bridge", "bridge with slow ones"]
    assert [result["runs"][0]["delivered"] for result in results] == [1200, 600, 1200, 600]
    others, memory = results[1]["asked"]
    assert others["reached"] == pytest.approx(2 * results[1]["delivered/s"] / results[0]["delivered/s"])
    assert memory["at_most"] == 3 * 9


@pytest.mark.parametrize("loss", [pytest.param("tear_down", marks=pytest.mark.long), "serve_stale"])
def test_teardown_tells_everybody_and_times_another_link(tmp_path: Path, loss: str) -> None:
    """Every subscriber is told of every removal, beside a stalled one, while updates of another link are timed."""
    options = ["--topics", "600", "--subscribers", "4", "--stalled", "1", "--rate", "200", "--loss", loss]
    (result,) = measure(tmp_path, "teardown", *options)

    assert (result["server"], result["loss"], result["topics"], result["subscribers"]) == ("ours", loss, 600, 4)
    assert result["runs"][0]["delivered"] == 2400
    assert result["removals/s"] == pytest.approx(2400 / result["all told after s"])
    assert 0 < result["p50 ms"] <= result["p99 ms"] <= result["max ms"]
    assert 0 < result["p99 ms before"] <= result["max ms before"]
    (ask,) = result["asked"]
    assert (ask["reached"], ask["at_most"]) == (result["max ms"], 100)


@pytest.mark.long
def test_scale_grows_topics_and_then_subscribers(tmp_path: Path) -> None:
    """Each series has its own first line, and every line says what was counted."""
    options = ["--topics", "10,100", "--subscribers", "1,3", "--deliveries", "600", "--messages-min", "100"]
    results = measure(tmp_path, "scale", *options, "--subscribers-beside", "2", "--topics-beside", "20")

    cases = [(result["grows"], result["topics"], result["subscribers"], result["messages"]) for result in results]
    assert cases == [
        ("topics", 10, 2, 300),
        ("topics", 100, 2, 300),
        ("subscribers", 20, 1, 600),
        ("subscribers", 20, 3, 200),
    ]


@pytest.mark.long
def test_capacity_divides_what_a_node_grows_by(tmp_path: Path) -> None:
    """Each figure is of so many things as were asked for, and for one of them."""
    path = tmp_path / "results.json"
    sizes = ["--connections", "20", "--sessions", "10", "--queued", "5", "--idle", "0.1"]
    done = run_bench("capacity", *sizes, "--runs", "1", "--json", path)
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())["results"]
    assert [result["count"] for result in results] == [20, 20, 1, 10, 50, 10, 50]
    for result in results:
        assert result["bytes each"] * result["count"] == pytest.approx(result["MiB"] * 2**20)
        assert result["CPU us each"] * result["count"] == pytest.approx(result["CPU s"] * 1e6)
        assert result["what"] in done.stdout


@pytest.mark.long
def test_members_share_a_burst(tmp_path: Path) -> None:
    """One process, two members, and two below a hub deliver everything; the gain is that of the figures."""
    options = ("--subscribers", "10", "--deliveries", "1000", "--messages-min", "100")
    one, members, chain = measure(tmp_path, "members", *options)
    assert [row["processes"] for row in (one, members, chain)] == ["1", "2 members", "hub and 2 members"]
    assert one["asked"] == []
    for row in (members, chain):
        (ask,) = row["asked"]
        assert ask["reached"] == pytest.approx(row["delivered/s"] / one["delivered/s"])
        assert row["peak MiB"] > 1.5 * one["peak MiB"]


def test_jms_counts_messages_of_an_amqp_consumer(tmp_path: Path) -> None:
    """Beside an MQTT reader; and MQTT readers get all with and without idle AMQP clients, which stay."""
    pytest.importorskip("proton", reason="python-qpid-proton is not installed (extra amqp)")
    options = ["--messages", "300", "--bursts", "2", "--idle", "5", "--readers", "3", "--pairs", "1"]
    results = measure(tmp_path, "jms", *options)

    names = ["1 MQTT reader", "1 AMQP consumer", "3 MQTT readers", "3 MQTT readers, 5 AMQP clients idle"]
    assert [result["clients"] for result in results] == names
    assert [result["runs"][0]["delivered"] for result in results] == [600, 600, 1800, 1800]
    assert [len(result["asked"]) for result in results] == [0, 0, 0, 1]


def test_disc_reads_what_it_wrote(tmp_path: Path) -> None:
    """Every topic is in the file, which the bench itself checks; each figure is above nothing."""
    path = tmp_path / "results.json"
    done = run_bench("disc", "--topics", "3000", "--runs", "1", "--json", path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(path.read_text())["results"]
    assert (result["topics"], result["sync"]) == (3000, "interval")
    for figure in ("new/s", "replaced/s", "commit ms", "open s", "load s"):
        assert result[figure] > 0
    assert result["commit ms"] <= result["commit ms, 99 %"]
    assert result["file bytes"] > 3000 * 64


def test_disc_only_counts_what_it_wrote(tmp_path: Path) -> None:
    """An audit finds every topic, a search and a start too, which the bench itself checks."""
    path = tmp_path / "results.json"
    done = run_bench("disc", "--only", "--topics", "3000", "--runs", "1", "--json", path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(path.read_text())["results"]
    assert (result["topics"], result["cache bytes"]) == (3000, 256 * 1024 * 1024)
    for figure in ("snapshot, CPU us", "audit, CPU us", "longest turn ms", "load s", "peak RSS MiB"):
        assert result[figure] > 0
