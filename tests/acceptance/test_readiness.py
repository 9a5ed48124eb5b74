"""Readiness as a load balancer and a script see it: `/readyz`, and `fanout ready` against real nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.cli.processes import run_fanout
from tests.support.mosquitto import Mosquitto
from tests.support.nodes import QUICK, Nodes, link, selector, watched
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.mosquitto


def test_node_waits_for_its_primary(mosquitto: Mosquitto, nodes: Nodes) -> None:
    """T8: without its primary a node answers 503 with the reason, `fanout ready` ends with 1, and `--wait` waits.

    `--wait` also bridges a node that is not up yet. Once the node is told to stop, a probe gets 503 or no
    connection, never 200.
    """
    mosquitto.stop()
    node = nodes.secondary(link(mosquitto.port, selector("plant/#"), settings=QUICK), log=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run_fanout, "ready", "--wait", "50", node.url)
        node.start()
        wait_until_blocking(lambda: node.link_status()["last_error"], what="the first attempt")
        status, document = node.probe()
        assert status == 503
        (reason,) = document["reasons"]
        assert reason.startswith("link primary is ")
        assert "refused" in reason.lower()
        assert node.get("/livez").status_code == 200  # nobody is to restart it
        answer = run_fanout("ready", node.url)
        assert answer.returncode == 1
        assert "not ready" in answer.stdout
        assert run_fanout("ready", "--wait", "0.6", node.url).returncode == 1
        assert not waiting.done()
        mosquitto.start()
        answer = waiting.result(60)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "is ready" in answer.stdout

    with watched(node) as answers:
        wait_until_blocking(lambda: answers, what="a first answer")
        assert node.stop() == 0
    verdicts = [answer["ready"] for answer in answers]
    assert verdicts == sorted(verdicts, reverse=True)
    assert all("the node is stopping" in answer["reasons"] for answer in answers if not answer["ready"])
    with pytest.raises(httpx.ConnectError):
        node.probe()
