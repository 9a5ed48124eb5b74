"""Links over TLS between processes: the documented steps with a Mosquitto, and chains of nodes."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from bench.processes import Server, free_port, wait_for_port
from tests.cli.processes import run_fanout
from tests.support.certificates import Authority
from tests.support.haproxy import find_haproxy
from tests.support.mosquitto import Mosquitto, find_mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, LiveNode, Nodes, selector
from tests.support.raw_reader import read_retained
from tests.support.waiting import wait_until_blocking

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tls-to-the-primary.md"


def blocks_of(title: str) -> list[tuple[str, str]]:
    """Return the blocks of code in a section of the page, each with its language."""
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def fanout(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of fanout in a directory."""
    with contextlib.chdir(directory):
        return run_fanout(*arguments)


@pytest.mark.mosquitto
def test_the_documented_steps_work(tmp_path: Path) -> None:
    """Each block as it is written, from openssl on, but for ports, and localhost for the broker's name."""
    (making, first), (broker, second), (node, third), (running, fourth) = blocks_of(
        "A secondary of a Mosquitto with TLS and client certificates"
    )
    assert (making, broker, node, running) == ("sh", "conf", "toml", "sh")
    subprocess.run(["sh", "-ec", first], cwd=tmp_path, check=True, capture_output=True)
    port, served, http = free_port(), free_port(), free_port()
    settings = second.replace("listener 8883", f"listener {port} 127.0.0.1")
    settings = re.sub(r"(file )(\S+\.(?:pem|key))", rf"\1{tmp_path}/\2", settings)
    (tmp_path / "mosquitto.conf").write_text(f"{settings}user root\n")  # else it cannot read this directory
    for old, new in (("broker.example:8883", f"localhost:{port}"), (":1884", f":{served}"), (":8080", f":{http}")):
        third, fourth = third.replace(old, new), fourth.replace(old, new)
    (tmp_path / "edge-1.toml").write_text(third)
    commands = [shlex.split(line) for line in fourth.splitlines()]
    assert [line[:2] for line in commands] == [["fanout", name] for name in ("check", "probe", "secondary", "ready")]
    check, probe, secondary, ready = (line[1:] for line in commands)
    mosquitto = [str(find_mosquitto()), "-c", str(tmp_path / "mosquitto.conf")]
    with Server(mosquitto, log=tmp_path / "mosquitto.log", port=port):
        client = paho.Client(CallbackAPIVersion.VERSION2)
        client.tls_set(str(tmp_path / "ca.pem"), str(tmp_path / "edge-1.pem"), str(tmp_path / "edge-1.key"))
        client.connect("localhost", port)
        client.loop_start()
        publish_all(client, [("plant/1", b"x")])
        client.disconnect()
        client.loop_stop()
        answer = fanout(*check, directory=tmp_path)
        assert (answer.returncode, answer.stderr) == (0, "")
        answer = fanout(*probe, "--set-size", "20", "--mqtt", "5", directory=tmp_path)
        assert (answer.returncode, answer.stderr) == (0, "")
        command = [sys.executable, "-m", "fanout", *secondary]
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
            try:
                wait_for_port(http, deadline_s=120)
                answer = fanout(*ready, f"127.0.0.1:{http}", directory=tmp_path)
                assert answer.returncode == 0, answer.stdout + answer.stderr
                assert read_retained(served, "plant/#") == {"plant/1": b"x"}
            finally:
                process.terminate()


def link_to(*addresses: str, settings: str = "") -> str:
    """Return the configuration of a link to a primary with these addresses."""
    named = ", ".join(f'"{address}"' for address in addresses)
    return f'[[link]]\nname = "primary"\nprimary = [{named}]\n{QUICK}{settings}{selector("plant/#")}'


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Give a certificate authority that has issued `server` and `edge`."""
    made = Authority(tmp_path)
    made.issue("server")
    made.issue("edge")
    return made


def serving(nodes: Nodes, authority: Authority, name: str, *links: str) -> tuple[LiveNode, int, int]:
    """Return a node that wants client certificates, its port for MQTT over TLS, and that for WebSocket."""
    directory, ports = authority.certificate.parent, (free_port(), free_port())
    settings = "".join(
        f'[[server.listener]]\naddress = "{scheme}://127.0.0.1:{port}"\ncertificate_file = "{directory}/server.pem"\n'
        f'key_file = "{directory}/server.key"\nclient_ca_file = "{authority.certificate}"\n'
        "require_client_certificate = true\n"
        for scheme, port in zip(("mqtts", "wss"), ports, strict=True)
    )
    if not links:
        return nodes.primary(name=name, settings=settings), *ports
    return nodes.secondary(*links, name=name, settings=settings), *ports


def test_chain_over_tls(nodes: Nodes, authority: Authority) -> None:
    """Two nodes below a `fanout primary`, over mqtts:// and then over wss://, each with its client certificate.

    Evidence, stamps and lag are those of a chain over TCP, values of any size come through; an outage is gone through.
    """
    directory = authority.certificate.parent
    keys = (
        f'ca_file = "{authority.certificate}"\nclient_certificate_file = "{directory}/edge.pem"\n'
        f'client_key_file = "{directory}/edge.key"\nheartbeat_s = 0.3\n'
    )
    hub, hub_port, _ = serving(nodes, authority, "hub")
    first = link_to(f"mqtts://127.0.0.1:{hub_port}", settings=keys)
    middle, _, web_port = serving(nodes, authority, "a", first)
    below = nodes.secondary(link_to(f"wss://127.0.0.1:{web_port}/mqtt", settings=keys), name="b")
    hub.started()
    with publisher(hub.port) as client:
        values = {f"plant/{number}": bytes([number]) * size for number, size in enumerate((1, 100_000, 900_000))}
        publish_all(client, values.items())
        for node in (middle, below):
            node.started()
            (state,) = node.probe()[1]["links"]
            assert (state["topics"], state["evidence"]) == (3, "manifest")
        values["plant/live"] = b"y" * 500_000
        publish_all(client, [("plant/live", values["plant/live"])])
        wait_until_blocking(lambda: read_retained(below.port, "plant/#") == values)
    wait_until_blocking(lambda: below.document("/v1/lag")["links"][0]["basis"] == "heartbeat")
    assert below.link_status()["primary_certificate_expires"] is not None
    assert (
        'fanout_link_certificate_expiry_time_seconds{certificate="client",link="primary"}' in below.get("/metrics").text
    )
    middle.restart()
    below.wait_until_ready()
    assert read_retained(below.port, "plant/#") == values


@pytest.mark.mosquitto
@pytest.mark.skipif(find_haproxy() is None, reason="HAProxy is not installed; scripts/setup installs it")
def test_behind_a_web_gateway(nodes: Nodes, authority: Authority, tmp_path: Path) -> None:
    """HAProxy ends TLS and serves the broker below one path of a web site; another path is told as such."""
    port, web_port = free_port(), free_port()
    (tmp_path / "both.pem").write_bytes((tmp_path / "server.pem").read_bytes() + (tmp_path / "server.key").read_bytes())
    (tmp_path / "haproxy.cfg").write_text(
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 5m\n  timeout server 5m\n"
        f"frontend web\n  bind 127.0.0.1:{port} ssl crt {tmp_path}/both.pem\n"
        "  http-request return status 404 unless { path /plant/mqtt }\n  default_backend broker\n"
        f"backend broker\n  server mosquitto 127.0.0.1:{web_port}\n"
    )
    settings = ["max_queued_messages 0", f"listener {web_port} 127.0.0.1", "protocol websockets"]
    command = [str(find_haproxy()), "-db", "-f", str(tmp_path / "haproxy.cfg")]
    with Mosquitto(tmp_path, settings=settings) as mosquitto, Server(command, log=tmp_path / "gateway.log", port=port):
        with publisher(mosquitto.port) as client:
            publish_all(client, [(f"plant/{number}", b"x") for number in range(2000)])
        ca = f'ca_file = "{authority.certificate}"\n'
        node = nodes.secondary(link_to(f"wss://localhost:{port}/plant/mqtt", settings=ca)).started()
        assert node.topics() == 2000
        lost = nodes.secondary(link_to(f"wss://localhost:{port}/", settings=ca), name="lost")
        lost.start()
        wait_until_blocking(lambda: lost.link_status()["last_error"] is not None)
        assert lost.link_status()["last_error"] == f"no WebSocket with wss://localhost:{port}: HTTP status 404"
        assert lost.link_status()["hint"] == "Write the path of its MQTT endpoint after the port, often /mqtt"


def test_an_unverified_primary_is_warned_of_at_each_start(nodes: Nodes, authority: Authority) -> None:
    """It works, and the log says each time what that means."""
    (hub, port, _), directory = serving(nodes, authority, "hub"), authority.certificate.parent
    hub.started()
    keys = f'client_certificate_file = "{directory}/edge.pem"\nclient_key_file = "{directory}/edge.key"\n'
    node = nodes.secondary(link_to(f"mqtts://127.0.0.1:{port}", settings=f"tls_insecure = true\n{keys}")).started()
    node.restart()
    node.wait_until_ready()
    assert node.log_text().count("does not verify its primary") == 2
