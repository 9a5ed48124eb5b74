"""`fanout trace` at a chain below Mosquitto: publisher, Mosquitto, hub, secondary, client."""

from __future__ import annotations

import json
import threading
from itertools import count

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from tests.support.clients import publish_properties, subscriber
from tests.support.mosquitto import Mosquitto, publish_all, publisher
from tests.support.nodes import QUICK, Nodes, link, selector

pytestmark = pytest.mark.mosquitto
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_of_a_publisher_reaches_the_client_and_is_shown(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """`traceparent` comes to the client as it was published; the command follows one message over both nodes."""
    settings = QUICK + "stamp_updates = true\n"
    hub = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=settings), name="hub").started()
    edge = nodes.secondary(link(hub.port, selector("plant/#"), settings=QUICK), name="edge").started()
    sent = publish_properties(UserProperty=[("traceparent", PARENT), ("unit", "K")])
    ended = threading.Event()

    def publish() -> None:
        with publisher(mosquitto.port) as client:
            for number in count():
                publish_all(client, [("plant/s1", b"%d" % number)], properties=sent)
                if ended.wait(0.1):
                    return

    with subscriber(edge.port, "plant/#") as inbox:
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            urls = [f"http://127.0.0.1:{node.http_port}" for node in (edge, hub)]
            answer = CliRunner().invoke(app, ["trace", "plant/s1", *urls, "--within", "30", "--json"])
        finally:
            ended.set()
            thread.join()
        assert answer.exit_code == 0, answer.output
        (came, *_) = inbox.wait(1)
        assert came.properties == sent.json()  # type: ignore[no-untyped-call]  # paho
    first, second = json.loads(answer.stdout)["hops"]
    below = second if second["node"] == "edge" else first
    assert below["above"] == "hub"
    assert below["readers"] == 1
    assert first["message"]["stamp"] == second["message"]["stamp"]
    assert [hop["message"]["traceparent"] for hop in (first, second)] == [PARENT, PARENT]
    assert abs(first["clock_ahead_seconds"] - second["clock_ahead_seconds"]) <= 0.01 + 2 * second["uncertainty_seconds"]
    for node in (hub, edge):
        assert node.document("/v1/topics/plant/s1")["held"]["traceparent"] == PARENT
