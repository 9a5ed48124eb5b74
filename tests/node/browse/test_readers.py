"""Users of the node read its topics over HTTP, within the rights that they have as clients."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Coroutine

import httpx
import pytest
from starlette.types import Message
from structlog.testing import CapturingLogger

from fanout.access.gate import Gate
from fanout.access.identity import Credentials
from fanout.api.app import create_app
from fanout.api.browse.models import TopicsDocument
from fanout.api.browse.view import TopicQuery
from fanout.api.operator_access import OperatorAccess
from fanout.config import AccessConfig
from fanout.mqtt.reason_codes import ReasonCode
from tests.access.pieces import ManualClock, as_logger
from tests.api.stand_in import ready_node
from tests.node.browse.pieces import Node, value
from tests.server.test_access import access_config, users
from tests.support.waiting import wait_until

RULES = access_config(rule=[{"allow": "read", "filter": "plant/%u/#"}])
TOPICS = ["plant/ann/1", "plant/ann/2", "plant/bob/1"]


def gate_for(config: AccessConfig, **passwords: bytes) -> Gate:
    """Return a gate with users."""
    return Gate(
        config,
        passwords=users(**passwords) if passwords else None,
        monotonic=ManualClock(),
        logger=as_logger(CapturingLogger()),
    )


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header of a user."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    """Give a gate with two users who may read their own branch."""
    made = gate_for(RULES, ann=b"secret", bob=b"other")
    yield made
    await made.close()


@pytest.fixture
def node(gate: Gate) -> Node:
    """Return a node with three topics."""
    return Node(TOPICS, gate=gate)


@pytest.fixture
async def http(node: Node) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of its HTTP interface, which others reach."""
    shown = ready_node()
    shown.browser = node.browser
    app = create_app(shown, access=OperatorAccess(token="a-token-of-24-characters"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as client:
        yield client


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/topics?filter=plant/ann/%23", 200),
        ("/v1/topics?filter=plant/ann/%2B", 200),
        ("/v1/topics/plant/ann/1", 200),
        ("/v1/tree?prefix=plant/ann", 200),
        ("/v1/topics", 403),
        ("/v1/topics?filter=plant/%2B/1&prefix=plant/ann", 403),
        ("/v1/topics/plant/bob/1", 403),
        ("/v1/tree", 403),
        ("/v1/tree?prefix=plant", 403),
        ("/v1/tree?prefix=plant/ann/%23", 422),
        ("/v1/top", 403),
        ("/v1/top/metrics", 403),
        ("/v1/stream?filter=plant/bob/%23", 403),
        ("/v1/status", 401),
        ("/v1/events", 401),
        ("/v1/clients", 401),
    ],
)
async def test_a_user_reads_what_its_clients_may_subscribe_to(http: httpx.AsyncClient, path: str, code: int) -> None:
    """Nothing else of the node, which is for operators; an operator reads all of it."""
    answer = await http.get(path, auth=("ann", "secret"))
    assert answer.status_code == code, answer.text
    if code != 422:
        token = {"Authorization": "Bearer a-token-of-24-characters"}
        assert "stream" in path or (await http.get(path, headers=token)).status_code == 200


async def test_prometheus_may_be_a_user() -> None:
    """One that may read all topics gets the busiest ones, and can do nothing of an operator's."""
    gate = gate_for(access_config(rule=[{"allow": "read", "filter": "#"}]), prometheus=b"secret")
    shown = ready_node()
    shown.browser = Node(TOPICS, gate=gate).browser
    app = create_app(shown, access=OperatorAccess(token="a-token-of-24-characters"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as client:
        who = ("prometheus", "secret")
        assert (await client.get("/v1/top/metrics", params={"count": 10}, auth=who)).status_code == 200
        assert (await client.post("/v1/drain", auth=who)).status_code == 401
    await gate.close()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 401),
        (basic("ann", "wrong"), 401),
        (basic("", "secret"), 401),
        ({"Authorization": "Basic %%%"}, 401),
        (basic("ann", "secret") | {"Origin": "http://page.example"}, 403),
    ],
)
async def test_others_read_nothing(http: httpx.AsyncClient, headers: dict[str, str], code: int) -> None:
    """Without a user and its password, and from pages of other sites."""
    assert (await http.get("/v1/topics?filter=plant/ann/%23", headers=headers)).status_code == code


async def test_the_tree_of_a_user_is_that_of_its_filter() -> None:
    """The first level of `#` takes no topics that begin with `$`; their branch is a right of its own."""
    gate = gate_for(access_config(rule=[{"allow": "read", "filter": "#"}]), ann=b"secret")
    shown = ready_node()
    shown.browser = Node(["!x", "$private/a", "$z", "plant/$s", "plant/1"], gate=gate).browser
    app = create_app(shown, access=OperatorAccess(token="a-token-of-24-characters"))
    token = {"Authorization": "Bearer a-token-of-24-characters"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as client:

        async def levels(headers: dict[str, str], limit: int, prefix: str = "") -> list[str]:
            found: list[str] = []
            parameters: dict[str, str | int] | None = {"limit": limit, "prefix": prefix}
            while parameters is not None:
                answer = (await client.get("/v1/tree", params=parameters, headers=headers)).json()
                found += [child["name"] for child in answer["children"]]
                assert headers == token or "private" not in str(answer)
                parameters = parameters | {"after": answer["next"]} if answer["next"] is not None else None
            return found

        for limit in (1, 2, 100):
            assert await levels(basic("ann", "secret"), limit) == ["!x", "plant"]
            assert await levels(token, limit) == ["!x", "$private", "$z", "plant"]
        assert await levels(basic("ann", "secret"), 100, "plant") == ["$s", "1"]
    await gate.close()


@pytest.mark.parametrize(
    ("fault", "code"),
    [("unavailable", 503), ("busy", 503), ("denied", 401), ("reserved", 403)],
)
async def test_a_refusal_tells_its_cause(monkeypatch: pytest.MonkeyPatch, fault: str, code: int) -> None:
    """A user whom nobody can verify now comes back; one with a wrong password does not, and asks for another."""
    reserved = [{"client_id": "http", "user": "bob"}] if fault == "reserved" else []
    gate = gate_for(access_config(rule=[{"allow": "read", "filter": "#"}], reserved=reserved), ann=b"secret")
    if fault != "reserved":
        refused = {
            "unavailable": ReasonCode.SERVER_UNAVAILABLE,
            "busy": ReasonCode.SERVER_BUSY,
            "denied": ReasonCode.NOT_AUTHORIZED,
        }[fault]

        async def authenticate(_credentials: Credentials, *, connects: bool) -> ReasonCode:
            assert not connects
            return refused

        monkeypatch.setattr(gate, "authenticate", authenticate)
    shown = ready_node()
    shown.browser = Node(TOPICS, gate=gate).browser
    transport = httpx.ASGITransport(app=create_app(shown, access=OperatorAccess(loopback=True)))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        answer = await client.get("/v1/topics", auth=("ann", "secret"))
    assert (answer.status_code, bool(answer.json()["hint"])) == (code, True)
    await gate.close()


async def test_a_node_without_users_has_no_readers() -> None:
    """A name that nobody verifies is not a user."""
    gate = gate_for(access_config(anonymous="always"))
    for found in (None, gate):
        assert await Node(TOPICS, gate=found).browser.reader("ann", b"secret", address="127.0.0.1") is None
    await gate.close()


async def test_requests_of_users_are_no_clients(gate: Gate, http: httpx.AsyncClient) -> None:
    """None counts as a client that was let in; a wrong password counts, since somebody may guess."""
    for password in ("secret", "secret", "wrong"):
        await http.get("/v1/topics?filter=plant/ann/%23", auth=("ann", password))
    assert gate.figures()["admitted_total"]["password"] == 0
    assert gate.figures()["refused_total"] == {"bad_user_name_or_password": 1}


async def test_users_take_no_place_of_operators(
    node: Node, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many searches of users go on, operators and Prometheus get their documents."""
    asked, may_answer, page = asyncio.Semaphore(0), asyncio.Event(), node.browser.page

    async def slowly(query: TopicQuery) -> TopicsDocument:
        asked.release()
        await may_answer.wait()
        return await page(query)

    monkeypatch.setattr(node.browser, "page", slowly)
    path, token = "/v1/topics?filter=plant/{0}/%23", {"Authorization": "Bearer a-token-of-24-characters"}
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        searches = [group.create_task(http.get(path.format("ann"), auth=("ann", "secret"))) for _ in range(8)]
        for _ in searches:
            await asked.acquire()
        assert (await http.get(path.format("ann"), auth=("ann", "secret"))).status_code == 429
        searches.append(group.create_task(http.get(path.format("bob"), auth=("bob", "other"))))
        await asked.acquire()
        for others in ("/metrics", "/v1/status", "/v1/tree"):
            assert (await http.get(others, headers=token)).status_code == 200
        may_answer.set()
    assert {one.result().status_code for one in searches} == {200}
    assert (await http.get(path.format("ann"), auth=("ann", "secret"))).status_code == 200


@pytest.mark.parametrize(("streams_max", "connections_max", "last_code"), [(4, None, 429), (40, 1, 200)])
async def test_users_take_no_stream_of_others(
    gate: Gate, node: Node, streams_max: int, connections_max: int | None, last_code: int
) -> None:
    """A user may have a quarter of the streams, all together three quarters, and none more than its connections."""
    quota = [] if connections_max is None else [{"user": "*", "connections_max": connections_max}]
    gate.replace(
        access_config(rule=[{"allow": "read", "filter": "#"}], quota=quota),
        passwords=users(ann=b"secret", bob=b"other"),
    )
    shown = ready_node()
    shown.browser = node.browser
    app = create_app(shown, access=OperatorAccess(token="a-token-of-24-characters"), streams_max=streams_max)
    codes: asyncio.Queue[int] = asyncio.Queue()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            codes.put_nowait(message["status"])

    def asks(headers: dict[str, str], topic_filter: str) -> Coroutine[None, None, None]:
        lines = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
        query = f"filter={topic_filter}".encode()
        scope = {"type": "http", "method": "GET", "path": "/v1/stream", "query_string": query, "headers": lines}
        return app(scope, receive, send)

    token = {"Authorization": "Bearer a-token-of-24-characters"}
    asked: list[asyncio.Task[None]] = []
    async with asyncio.timeout(20):
        for headers, topic_filter, code in (
            (basic("ann", "secret"), "plant/ann/1", 200),
            (basic("ann", "secret"), "plant/ann/2", 429),
            (basic("bob", "other"), "plant/bob/1", 200),
            (token, "plant/1", 200),
            (token, "plant/2", 200),
            (token, "plant/3", last_code),
        ):
            asked.append(asyncio.create_task(asks(headers, topic_filter)))
            assert await codes.get() == code
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_user_learns_no_number_of_topics_that_it_may_not_read(http: httpx.AsyncClient) -> None:
    """A page tells operators how many topics the node holds, and users nothing."""
    path, token = "/v1/topics?filter=plant/ann/%23", {"Authorization": "Bearer a-token-of-24-characters"}
    assert (await http.get(path, auth=("ann", "secret"))).json()["held"] is None
    assert (await http.get(path, headers=token)).json()["held"] == 3


@pytest.mark.parametrize("lost", ["right", "user"])
async def test_a_stream_ends_with_the_right_to_it(gate: Gate, node: Node, http: httpx.AsyncClient, lost: str) -> None:
    """A reload takes the right, or the user: messages that come then are not sent."""
    reading = asyncio.create_task(http.get("/v1/stream?filter=plant/ann/%23", auth=("ann", "secret")))
    await wait_until(lambda: node.observers)
    if lost == "right":
        gate.replace(access_config(rule=[{"deny": "read", "filter": "#"}]), passwords=users(ann=b"secret"))
    else:
        gate.replace(RULES, passwords=users(bob=b"other"))
    node.publish(value("plant/ann/2", b"after"))
    async with asyncio.timeout(20):
        answer = await reading
    assert answer.status_code == 200
    assert "after" not in answer.text
