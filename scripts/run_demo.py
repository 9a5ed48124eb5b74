"""The demonstration behind `scripts/demo`: the whole mission on one machine, with real processes and input."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402 (the repository's own packages must be found first)
from rich.console import Console  # noqa: E402

from bench.processes import Mosquitto, Node, Server, find_mosquitto, link, selector, wait_for  # noqa: E402

_LIVE_S = 6.0
"""How long the stream runs before and after the primary's restart."""

_PROGRESS_S = 0.5
"""Pause between two lines about a node whose state is the same and whose topics grow."""

_SELECTOR = "plant/#"


class Demo:
    """The processes of one demonstration, and what is said about them."""

    def __init__(self, scratch: Path, *, sensors: int, rate: int, console: Console) -> None:
        self.scratch = scratch
        self.sensors = sensors
        self.rate = rate
        self.console = console
        self.started_at = time.monotonic()
        if find_mosquitto():
            self.primary: Server = Mosquitto(scratch, name="primary")
            self.primary_kind = "Mosquitto"
        else:
            self.primary = Node(scratch, role="primary", name="primary")
            self.primary_kind = "fanout primary (no Mosquitto found on this machine)"
        links = link(self.primary.port, selector(_SELECTOR), settings="retry_max_s = 2\nheartbeat_s = 1\n")
        self.tap = Node(scratch, role="tap", name="tap", links=links)
        self.secondaries = [Node(scratch, role="secondary", name=f"edge-{number}", links=links) for number in (1, 2)]
        load = [sys.executable, str(ROOT / "scripts" / "demo_load.py"), "--port", str(self.primary.port)]
        self.load = Server([*load, "--sensors", str(sensors), "--rate", str(rate)], log=scratch / "load.log", port=0)

    @property
    def nodes(self) -> list[Node]:
        """The nodes that replicate."""
        return [self.tap, *self.secondaries]

    @property
    def servers(self) -> list[Server]:
        """Every process, in the order in which they stop."""
        return [self.load, *self.secondaries, self.tap, self.primary]

    def say(self, text: str) -> None:
        """Print one line with the time since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.started_at:6.2f} s[/]  {text}", highlight=False)

    def title(self, text: str) -> None:
        """Print a heading."""
        self.console.print(f"\n[bold]{text}[/]", highlight=False)

    def run(self) -> None:
        """Start everything, restart the primary once, and leave all running."""
        self.title(f"1. A primary ({self.primary_kind}) with {self.sensors:,} retained topics, {self.rate} updates/s")
        self.primary.start()
        self.load.start()
        self.wait_for_load()
        self.say(f"primary on mqtt://127.0.0.1:{self.primary.port} holds {self.sensors:,} retained topics")

        self.title(f"2. A tap and two secondaries replicate {_SELECTOR}")
        with ThreadPoolExecutor() as pool:
            list(pool.map(Node.start, self.nodes))
        self.watch("ready", wanted=True)
        self.read_back()
        time.sleep(_LIVE_S)
        self.show_lag()

        self.title("3. The primary is killed (it has no persistence), and started again")
        self.primary.stop(signal.SIGKILL)
        self.say("primary killed")
        self.watch("not ready", wanted=False)
        self.primary.start()
        self.say("primary started again, empty; the sensors come back after a while")
        self.watch("replica torn down, in step with the empty primary", wanted=True, topics_max=self.sensors - 1)
        self.watch("re-created, ready", wanted=True, topics_min=self.sensors)
        self.read_back()
        time.sleep(_LIVE_S)
        self.show_lag()

    def wait_for_load(self) -> None:
        """Return once the load has published every sensor."""
        published = self.load.log_path
        wait_for(lambda: "published" in published.read_text(), what="the sensors' first values", deadline_s=60)

    def watch(self, what: str, *, wanted: bool, topics_min: int = 0, topics_max: int = sys.maxsize) -> None:
        """Show every change of every node's link until all are as `wanted`, with so many topics."""
        waiting = {node.name: node for node in self.nodes}
        shown: dict[str, tuple[str, float]] = {}
        end = time.monotonic() + 60
        while waiting:
            for name, node in list(waiting.items()):
                document = node.readiness()
                (state,) = document["links"]  # type: ignore[misc]  # the document is plain JSON
                evidence = f", evidence {state['evidence']}" if state["evidence"] else ""
                line = f"{state['state'].replace('_', ' ')}: {state['topics']:,} topics{evidence}"
                settled = document["ready"] is wanted and topics_min <= state["topics"] <= topics_max
                before, at = shown.get(name, ("", 0.0))
                same_state = before.partition(":")[0] == line.partition(":")[0]
                if line != before and (settled or not same_state or time.monotonic() > at + _PROGRESS_S):
                    shown[name] = line, time.monotonic()
                    self.say(f"{name:7} {line}")
                if settled:
                    del waiting[name]
                    self.say(f"{name:7} [bold {'green' if wanted else 'yellow'}]{what}[/]")
            if time.monotonic() > end:
                raise TimeoutError(f"{', '.join(waiting)} not {what} within 60 s; logs are in {self.scratch}")
            time.sleep(0.02)

    def read_back(self) -> None:
        """Read the retained topics through each secondary's own port with a client that is not ours."""
        for node in self.secondaries:
            reader = [sys.executable, "-c", _READER, str(node.port), _SELECTOR, str(self.sensors)]
            answer = json.loads(subprocess.run(reader, capture_output=True, check=True, timeout=60).stdout)
            self.say(f"{node.name:7} serves {answer['topics']:,} retained topics on mqtt://127.0.0.1:{node.port}")
            if answer["topics"] != self.sensors:
                raise RuntimeError(f"{node.name} served {answer['topics']} of {self.sensors} retained topics")

    def show_lag(self) -> None:
        """Print each node's lag, as its HTTP interface tells it."""
        for node in self.nodes:
            (state,) = httpx.get(f"{node.url}/v1/lag").json()["links"]
            lag = "unknown" if state["lag_seconds"] is None else f"{state['lag_seconds'] * 1000:.1f} ms"
            self.say(f"{node.name:7} lag {lag} (by {state['basis']})")

    def settle(self) -> None:
        """End the load and wait until all nodes hold the same final values."""
        self.load.stop()

        def equal() -> bool:
            return len({json.dumps(self.digests(node)) for node in self.nodes}) == 1

        wait_for(equal, what="equal digests on all nodes", deadline_s=20)
        self.say("the stream has ended; all nodes hold the same final values (equal digests)")

    def digests(self, node: Node) -> list[object]:
        """Return the digest of each selector of a node."""
        (state,) = httpx.get(f"{node.url}/v1/status").json()["links"]
        return [selector["digest"] for selector in state["selectors"]]

    def report(self) -> None:
        """Run the Spark report over the logs that were just written, and print it."""
        self.title("4. What was complete, and how late: the Spark report over the replication logs")
        directories = sorted(str(path) for path in (self.scratch / "replication-log").iterdir())
        page, document = self.scratch / "report.html", self.scratch / "report.json"
        command = [sys.executable, "-m", "fanout", "report", "summary", *directories, "--settle", "0"]
        subprocess.run([*command, "--html", str(page), "--json", str(document)], check=True, cwd=self.scratch)
        self.say(f"the same as a page: {page}")

    def stop(self) -> None:
        """End every process by its pid."""
        for server in self.servers:
            server.stop()


_READER = """
import asyncio, json, sys
import aiomqtt

async def main(port, selector, expected):
    topics = set()
    async with aiomqtt.Client("127.0.0.1", port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.subscribe(selector, qos=1)
        async for message in client.messages:
            topics.add(str(message.topic))
            if len(topics) >= expected:
                break
    print(json.dumps({"topics": len(topics)}))

asyncio.run(asyncio.wait_for(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])), 30))
"""


def stop_kept(state: Path) -> int:
    """End what an earlier `--keep` left running; return the exit code."""
    if not state.exists():
        print("Nothing was left running.")
        return 0
    for pid in json.loads(state.read_text())["pids"]:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    state.unlink()
    print("Stopped.")
    return 0


def main() -> int:
    """Run the demonstration and return the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running and print the addresses")
    parser.add_argument("--stop", action="store_true", help="end what an earlier --keep left running")
    parser.add_argument("--skip-report", action="store_true", help="leave out the report")
    parser.add_argument("--sensors", type=int, default=4000, help="retained topics (4000)")
    parser.add_argument("--rate", type=int, default=300, help="updates a second (300)")
    parser.add_argument("--directory", type=Path, default=ROOT / "var" / "demo", help="for logs and reports (var/demo)")
    arguments = parser.parse_args()
    state = arguments.directory / "running.json"
    if arguments.stop:
        return stop_kept(state)
    if state.exists():
        print("An earlier demonstration is still running. End it with: scripts/demo --stop", file=sys.stderr)
        return 1
    scratch = arguments.directory / time.strftime("%Y%m%d-%H%M%S")
    scratch.mkdir(parents=True)
    demo = Demo(scratch, sensors=arguments.sensors, rate=arguments.rate, console=Console())
    try:
        demo.run()
        if arguments.keep:
            demo.report()
            keep(demo, state)
            return 0
        demo.settle()
        for node in (*demo.secondaries, demo.tap):
            node.stop()
        if not arguments.skip_report:
            demo.report()
        demo.title("Done. Everything was real; nothing is left running.")
    except (TimeoutError, RuntimeError, subprocess.SubprocessError) as error:
        print(f"error: {error}\nLogs are in {scratch}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not state.exists():
            demo.stop()
    return 0


def keep(demo: Demo, state: Path) -> None:
    """Print where everything listens, and note the pids for `--stop`."""
    pids = [server.process.pid for server in demo.servers if server.process is not None]
    state.write_text(json.dumps({"pids": pids}))
    demo.title("Left running. End it with: scripts/demo --stop")
    demo.console.print(f"  primary  mqtt://127.0.0.1:{demo.primary.port}", highlight=False)
    for node in demo.secondaries:
        demo.console.print(f"  {node.name:8} mqtt://127.0.0.1:{node.port}  {node.url}/readyz", highlight=False)
    demo.console.print(f"  tap      {demo.tap.url}/readyz", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
