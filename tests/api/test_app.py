"""The endpoints, over a real socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator

import httpx
import pytest

from fanout.api.app import ACTIONS, ENDPOINTS, create_app
from fanout.api.operator_access import LOOPBACK, OperatorAccess
from tests.api.stand_in import StandInNode, ready_node, snapshot_link


async def test_livez_says_live_whatever_the_links_do(node: StandInNode, http: httpx.AsyncClient) -> None:
    """Liveness is not readiness: a node that waits for its primary must not be restarted."""
    node.reasons = ("link plant: down",)
    answer = await http.get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"live": True})


async def test_readyz_ready(node: StandInNode, http: httpx.AsyncClient) -> None:
    """A ready node answers 200 with the evidence of each link."""
    answer = await http.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {
        "ready": True,
        "state": "ready",
        "reasons": [],
        "stale_seconds": None,
        "node": "edge-1",
        "role": "secondary",
        "links": [
            {
                "name": "plant",
                "ready": True,
                "state": "live",
                "reason": None,
                "since": "2025-11-21T08:00:00.250000Z",
                "epoch": 1_763_712_000_250_000,
                "topics": 200_000,
                "stale_seconds": 0.0,
                "evidence": "marker",
                "not_held_topics": 0,
                "not_held_reason": None,
                "selectors": [
                    {
                        "filter": "plant/#",
                        "topics": 200_000,
                        "complete": True,
                        "evidence": "marker",
                        "joining": False,
                        "maybe_unreadable": False,
                    }
                ],
            }
        ],
        "held_since": None,
    }


async def test_readyz_not_ready(node: StandInNode, http: httpx.AsyncClient) -> None:
    """A node that is not ready answers 503 with every reason."""
    node.links = (snapshot_link(),)
    node.reasons = ("link plant: snapshot, 12,040 topics so far",)
    answer = await http.get("/readyz")
    assert answer.status_code == 503
    document = answer.json()
    assert (document["ready"], document["state"]) == (False, "not_ready")
    assert document["reasons"] == ["link plant: snapshot, 12,040 topics so far"]
    assert document["links"][0]["evidence"] is None
    assert document["links"][0]["reason"] == "snapshot, waits for the retained set"


async def test_drain_takes_the_node_out_of_its_pool(http: httpx.AsyncClient) -> None:
    """`POST /v1/drain` is accepted, and from then on `/readyz` answers 503 with the state `draining`."""
    answer = await http.post("/v1/drain")
    assert (answer.status_code, answer.json()) == (
        202,
        {"node": "edge-1", "state": "draining", "left_seconds": 2.5},
    )
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["state"]) == (503, "draining")


async def test_readyz_can_tell_haproxy_that_it_drains(node: StandInNode, http: httpx.AsyncClient) -> None:
    """404 where `disable-on-404` asks for it, and while it drains only; other codes are not to be had."""
    path = "/readyz?draining=404"
    assert (await http.get(path)).status_code == 200
    node.reasons = ("link plant is down",)
    assert (await http.get(path)).status_code == 503
    node.drain()
    answer = await http.get(path)
    assert (answer.status_code, answer.json()["state"]) == (404, "draining")
    assert (await http.get("/readyz")).status_code == 503
    for other in ("200", "soon", ""):
        answer = await http.get("/readyz", params={"draining": other})
        assert answer.status_code == 422
        assert answer.json() == {
            "error": "draining must be 404 or 503",
            "hint": "see /openapi.json",
        }


@pytest.mark.parametrize(
    ("query", "code"),
    [("", 503), ("?stale=503", 503), ("?stale=ok", 200), ("?stale=404", 404), ("?stale=ok&draining=404", 200)],
)
async def test_readyz_offers_stale_values_where_they_are_asked_for(
    node: StandInNode, http: httpx.AsyncClient, query: str, code: int
) -> None:
    """With their age in the document and in a header; what is not stale but incomplete is a 503 whatever is asked."""
    node.reasons, node.stale_seconds = ("link plant is stalled, waits for a heartbeat",), 41.7
    answer = await http.get(f"/readyz{query}")
    assert (answer.status_code, answer.headers["Fanout-Stale-Seconds"]) == (code, "42")
    assert (answer.json()["ready"], answer.json()["stale_seconds"]) == (False, 41.7)
    node.stale_seconds = None
    answer = await http.get(f"/readyz{query}")
    assert answer.status_code == 503
    assert "Fanout-Stale-Seconds" not in answer.headers
    node.reasons = ()
    assert (await http.get(f"/readyz{query}")).status_code == 200
    assert (await http.get("/readyz?stale=yes")).status_code == 422


async def test_drain_is_not_for_pages_in_a_browser(node: StandInNode, http: httpx.AsyncClient) -> None:
    """A page of a stranger can post to loopback; its browser says where the page is from, and gets a 403."""
    answer = await http.post("/v1/drain", headers={"Origin": "https://example.com"})
    assert answer.status_code == 403
    assert answer.json() == {
        "error": "a page in a browser may not ask for this",
        "hint": "Use a command, or leave out Origin",
    }
    assert not node.draining


async def test_drain_is_not_asked_for_by_looking(node: StandInNode, http: httpx.AsyncClient) -> None:
    """GET, which crawlers and previews send, is a 405."""
    answer = await http.get("/v1/drain")
    assert (answer.status_code, answer.json()["hint"]) == (405, "Use POST")
    assert not node.draining


async def test_probes_answer_head(node: StandInNode, http: httpx.AsyncClient) -> None:
    """A probe that sends HEAD gets the status without the body."""
    node.reasons = ("draining",)
    assert (await http.head("/livez")).status_code == 200
    answer = await http.head("/readyz")
    assert (answer.status_code, answer.content) == (503, b"")


async def test_status_is_the_nodes_document(node: StandInNode, http: httpx.AsyncClient) -> None:
    """`/v1/status` shows everything the node knows about itself."""
    answer = await http.get("/v1/status")
    assert answer.status_code == 200
    assert answer.json() == node.status().model_dump(mode="json")


async def test_status_of_a_tap_has_no_server(node: StandInNode, http: httpx.AsyncClient) -> None:
    """What a node does not have is null, not a row of zeros."""
    node.role, node.server, node.log = "tap", None, None
    document = (await http.get("/v1/status")).json()
    assert (document["server"], document["log"]) == (None, None)


async def test_lag_unknown_is_null(node: StandInNode, http: httpx.AsyncClient) -> None:
    """`/v1/lag` never answers zero for what it does not know."""
    assert (await http.get("/v1/lag")).json()["links"][0]["lag_seconds"] == 0.0041
    node.heartbeat = (None, None, 5.0)
    link = (await http.get("/v1/lag")).json()["links"][0]
    assert (link["lag_seconds"], link["basis"]) == (None, "unknown")
    assert (link["received_total"], link["topics"]) == (201_234, 200_000)


async def test_metrics_are_prometheus_text(http: httpx.AsyncClient) -> None:
    """A scraper that does not say what it wants gets the text format."""
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "fanout_node_ready 1.0\n" in answer.text
    assert "process_resident_memory_bytes" in answer.text


async def test_metrics_are_openmetrics_where_asked_for(http: httpx.AsyncClient) -> None:
    """Prometheus asks for OpenMetrics and gets it, with its end mark."""
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    answer = await http.get("/metrics", headers=accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_metrics_for_a_scraper_that_asks_for_no_version(http: httpx.AsyncClient) -> None:
    """What it accepts is not understood, and it gets the text format."""
    answer = await http.get("/metrics", headers={"Accept": "application/openmetrics-text;version= ="})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")


async def test_unknown_path_is_a_json_404(http: httpx.AsyncClient) -> None:
    """A wrong path says which paths there are."""
    answer = await http.get("/readyy")
    assert answer.status_code == 404
    assert answer.json()["error"] == "no such path: /readyy"
    for path in (*ENDPOINTS, *ACTIONS):
        assert path in answer.json()["hint"]


async def test_wrong_method_is_a_json_405(http: httpx.AsyncClient) -> None:
    """A wrong method says what is allowed."""
    answer = await http.post("/readyz")
    assert answer.status_code == 405
    assert answer.json() == {"error": "POST is not possible here", "hint": "Use GET"}


async def test_audit_answers_what_was_found(node: StandInNode, http: httpx.AsyncClient) -> None:
    """The answer comes when the audit has ended; nothing is confirmed unless that is said."""
    answer = await http.post("/v1/links/plant/audit")
    assert answer.status_code == 200
    assert (answer.json()["checked_topics"], answer.json()["removed_topics"], answer.json()["kept_topics"]) == (
        200_000,
        0,
        70_000,
    )
    answer = await http.post("/v1/links/plant/audit", json={"confirmed": 70_000})
    assert (answer.json()["removed_topics"], answer.json()["kept_topics"]) == (70_000, 0)
    answer = await http.post("/v1/links/plant/audit", json={"confirmed": 3})
    assert (answer.status_code, answer.json()["error"]) == (409, "70000 topics are unconfirmed now, not 3")


async def test_unconfirmed_topics_come_in_pages(http: httpx.AsyncClient) -> None:
    """Each names the topic behind which the next one begins; the branches come with the first."""
    pages = []
    after: str | None = ""
    while after is not None:
        answer = await http.get("/v1/links/plant/unconfirmed", params={"after": after})
        assert answer.status_code == 200
        pages.append(answer.json())
        after = pages[-1]["next"]
    assert [len(page["topics"]) for page in pages] == [2, 2, 1]
    assert [len(page["branches"]) for page in pages] == [1, 0, 0]
    assert (await http.get("/v1/links/planet/unconfirmed")).status_code == 404


async def test_audit_that_is_not_possible_is_refused(node: StandInNode, http: httpx.AsyncClient) -> None:
    """An unknown link, a link that is not live, a page in a browser, a question in place of an order."""
    answer = await http.post("/v1/links/planet/audit")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": "there is no link planet", "hint": "Its links are plant"},
    )
    node.links = (snapshot_link(),)
    answer = await http.post("/v1/links/plant/audit")
    assert (answer.status_code, answer.json()) == (409, {"error": "the link is snapshot", "hint": "Try again later"})
    answer = await http.post("/v1/links/plant/audit", headers={"Origin": "http://example.org"})
    assert answer.status_code == 403
    answer = await http.get("/v1/links/plant/audit")
    assert (answer.status_code, answer.json()["hint"]) == (405, "Use POST")


_NUMBER = "confirmed must be the number of unconfirmed topics, as GET /v1/links/{link}/unconfirmed gives it"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        *((f'{{"confirmed": {value}}}', _NUMBER) for value in ("true", "false", "-1", '"maybe"', "1.5")),
        ('{"confrimed": true}', "there is no confrimed to be said"),
        ("{confirmed", "the body is not JSON"),
        ("[]", "the body must be a JSON object"),
    ],
)
async def test_an_audit_is_asked_for_in_words_that_are_known(http: httpx.AsyncClient, body: str, problem: str) -> None:
    """Anything else is refused, in plain words: what was meant as a confirmation must not go unheard."""
    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/links/plant/audit", content=body, headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (422, problem)


async def test_a_body_that_is_no_text_is_no_json(http: httpx.AsyncClient) -> None:
    """As every fault it has an error and a hint."""
    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/links/plant/audit", content=b'"\xff"', headers=headers)
    assert (answer.status_code, answer.json()) == (
        422,
        {"error": "the body is not JSON", "hint": "see /openapi.json"},
    )


async def test_a_form_of_a_page_is_no_order(http: httpx.AsyncClient) -> None:
    """A page can send one without asking; JSON it cannot."""
    headers = {"Content-Type": "text/plain"}
    answer = await http.post("/v1/links/plant/audit", content=b'{"confirmed": true}', headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (422, "the body must be a JSON object")


async def test_a_large_body_is_a_json_413(http: httpx.AsyncClient) -> None:
    """As every fault it has an error and a hint."""
    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/links/plant/audit", content=b" " * 65_537, headers=headers)
    assert (answer.status_code, answer.json()) == (
        413,
        {"error": "the body has more than 65536 bytes", "hint": "see /openapi.json"},
    )


async def test_answers_are_not_cached(http: httpx.AsyncClient) -> None:
    """No cache on the way may answer in the node's place."""
    for path in (*ENDPOINTS, "/no-such-path"):
        assert (await http.get(path)).headers["cache-control"] == "no-store", path


async def test_every_endpoint_answers(http: httpx.AsyncClient) -> None:
    """The list that a 404 shows is true."""
    for path in ENDPOINTS:
        query = "?topic=plant/1" if path == "/v1/explain" else ""
        path = path.replace("{link}", "plant").replace("{topic}", "plant/1")
        # This node delivers nothing that could be streamed, and has no report.
        refused = {"/v1/stream": 409, "/v1/report": 404}
        assert (await http.get(path + query)).status_code == refused.get(path, 200), path


async def test_members_of_a_pool_are_compared_with_the_rights_of_who_asks(
    node: StandInNode, http: httpx.AsyncClient
) -> None:
    """The other members get the same credentials; several who ask at a time get one comparison."""
    headers = {"Authorization": "Bearer a-token"}
    answers = await asyncio.gather(*(http.get("/v1/pool/compare", headers=headers) for _ in range(3)))
    assert [answer.json()["members"] for answer in answers] == [{"edge-1": None, "edge-2": "http://127.0.0.1:8081"}] * 3
    assert node.compared_with == ["Bearer a-token"]


async def test_a_node_without_a_pool_compares_nothing(node: StandInNode, http: httpx.AsyncClient) -> None:
    """It says so."""
    node.members = ()
    answer = await http.get("/v1/pool/compare")
    assert (answer.status_code, answer.json()["error"]) == (409, "edge-1 is in no pool")


async def test_explain_answers_a_verdict_and_the_facts(http: httpx.AsyncClient) -> None:
    """What the node found of a topic; a client is part of the question only if it is named."""
    document = (await http.get("/v1/explain", params={"topic": "plant/1"})).raise_for_status().json()
    assert document["verdict"]["kind"] == "equal"
    assert (document["facts"]["topic"], document["facts"]["client"], document["also"]) == ("plant/1", None, [])
    document = (await http.get("/v1/explain", params={"topic": "plant/1", "client": "panel"})).json()
    assert (document["verdict"]["kind"], document["facts"]["client"]["client_id"]) == ("client", "panel")


async def test_one_topic_is_explained_at_a_time(node: StandInNode, http: httpx.AsyncClient) -> None:
    """Each costs a connection to the primary, so a second request is refused until the first has its answer."""
    node.may_explain.clear()
    first = asyncio.create_task(http.get("/v1/explain?topic=plant/1"))
    await asyncio.wait_for(node.explaining.wait(), 10)
    answer = await http.get("/v1/explain?topic=plant/2")
    assert answer.json() == {"error": "another topic is being explained", "hint": "Ask again in some seconds"}
    assert answer.status_code == 429
    node.may_explain.set()
    assert (await first).status_code == 200
    assert (await http.get("/v1/explain?topic=plant/2")).status_code == 200


async def test_explain_refuses_what_is_no_topic_name_and_pages_of_other_sites(http: httpx.AsyncClient) -> None:
    """A page could make the node connect to its primary again and again."""
    faults = {
        "": "topic must be said",
        "?topic=": "topic must be a name without wildcards, and not empty",
        "?topic=plant/%23": "topic must be a name without wildcards, and not empty",
        "?topic=plant/%2B/1": "topic must be a name without wildcards, and not empty",
        "?topic=plant/1&at_primary=maybe": "at_primary must be true or false",
    }
    for query, error in faults.items():
        answer = await http.get(f"/v1/explain{query}")
        assert (answer.status_code, answer.json()["error"]) == (422, error)
    for header in ({"Origin": "https://page.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (await http.get("/v1/explain?topic=plant/1", headers=header)).status_code == 403
    assert (await http.get("/v1/explain?topic=plant/1", headers={"Sec-Fetch-Site": "none"})).status_code == 200


async def test_bug_in_the_node_is_logged_not_told(
    node: StandInNode, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A client is told that it is our bug; the details are in the log only."""
    node.error = RuntimeError("the secret detail")
    with caplog.at_level(logging.ERROR):
        answer = await http.get("/readyz")
    assert answer.status_code == 500
    assert answer.json()["error"] == "the node failed to answer"
    assert "secret" not in answer.text
    assert "the secret detail" in caplog.text


def test_openapi_describes_every_document() -> None:
    """The schema names the documents and the 503 of `/readyz`."""
    schema = create_app(ready_node()).openapi()
    assert set(schema["paths"]) == {*ENDPOINTS, *ACTIONS} - {"/openapi.json"}
    assert "503" in schema["paths"]["/readyz"]["get"]["responses"]
    assert {"Readiness", "NodeStatus", "LagDocument"} <= set(schema["components"]["schemas"])
    [body] = schema["paths"]["/v1/links/{link}/audit"]["post"]["requestBody"]["content"].values()
    assert set(body["schema"]["properties"]) == {"confirmed"}
    assert "HTTPValidationError" not in schema["components"]["schemas"], "every 422 is a Fault"


async def test_hold_takes_the_node_out_of_its_pool_for_a_while(node: StandInNode, http: httpx.AsyncClient) -> None:
    """Not ready, 404 for HAProxy's `disable-on-404`, and ready again after `undrain`; both can be asked for twice."""
    answer = await http.post("/v1/hold")
    assert (answer.status_code, answer.json()["changed"], node.sent_away) == (200, True, False)
    assert not (await http.post("/v1/hold", json={"disconnect": True})).json()["changed"]
    assert node.sent_away
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["held_since"]) == (503, "2025-11-21T08:00:00.250000Z")
    assert (await http.get("/readyz?draining=404")).status_code == 404
    assert (await http.post("/v1/undrain")).json()["changed"]
    assert not (await http.post("/v1/undrain")).json()["changed"]
    assert (await http.get("/readyz")).status_code == 200


async def test_node_that_drains_cannot_be_held(node: StandInNode, http: httpx.AsyncClient) -> None:
    """409, with the reason."""
    node.drain()
    answer = await http.post("/v1/hold")
    assert (answer.status_code, answer.json()["error"].startswith("the node is draining")) == (409, True)


@pytest.mark.parametrize("path", ["/v1/hold", "/v1/undrain", "/v1/clients/kick"])
async def test_actions_are_not_for_pages_in_a_browser(http: httpx.AsyncClient, path: str) -> None:
    """As for `/v1/drain`."""
    assert (await http.post(path, headers={"Origin": "https://example.com"})).status_code == 403


async def test_clients_in_pages(node: StandInNode, http: httpx.AsyncClient) -> None:
    """Order, begin and length go to the node; its document is the answer."""
    answer = await http.get("/v1/clients", params={"order": "slowest", "limit": 1})
    assert answer.status_code == 200
    assert (answer.json()["clients"][0]["client_id"], answer.json()["next"]) == ("app-1", "app-1")
    assert (await http.get("/v1/clients", params={"after": "app-1", "client_id": "app-2"})).status_code == 200
    assert node.asked_clients == [("slowest", "", 1, None), ("id", "app-1", 100, "app-2")]
    assert (await http.get("/v1/clients", params={"client_id": "nobody"})).status_code == 409


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("order=loudest", "order must be id or slowest"),
        ("limit=0", "limit must be a whole number from 1 to 1000"),
        ("limit=1001", "limit must be a whole number from 1 to 1000"),
        ("limit=many", "limit must be a whole number from 1 to 1000"),
    ],
)
async def test_wrong_questions_about_clients(http: httpx.AsyncClient, query: str, error: str) -> None:
    """422 in plain words."""
    answer = await http.get(f"/v1/clients?{query}")
    assert (answer.status_code, answer.json()["error"]) == (422, error)


async def test_kick(http: httpx.AsyncClient) -> None:
    """The client is named in the body, since an identifier may have any character."""
    answer = await http.post("/v1/clients/kick", json={"client_id": "app-1", "clean": True})
    assert (answer.status_code, answer.json()["session"]) == (200, "ended")
    assert (await http.post("/v1/clients/kick", json={"client_id": "no/body"})).status_code == 409
    for body, error in (
        ({}, "client_id must be said"),
        ({"client_id": 5}, "client_id must be a text"),
        ({"client_id": "app-1", "now": True}, "there is no now to be said"),
        ({"client_id": "app-1", "clean": "yes"}, "clean must be true or false"),
    ):
        answer = await http.post("/v1/clients/kick", json=body)
        assert (answer.status_code, answer.json()["error"]) == (422, error)


OPEN = {"/livez", "/readyz", "/metrics"}


def every_request() -> list[tuple[str, str]]:
    """Return method and path of all requests that a node answers."""
    return [*(("GET", path) for path in ENDPOINTS), *(("POST", path) for path in ACTIONS), ("GET", "/no/such/path")]


@pytest.mark.parametrize(
    ("access", "headers", "code"),
    [
        (OperatorAccess(token="a-token-of-24-characters"), {}, 401),
        (OperatorAccess(), {}, 403),
        (LOOPBACK, {"Host": "evil.example"}, 403),
        (LOOPBACK, {"Origin": "https://page.example"}, 403),
        (LOOPBACK, {"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_strangers_get_probes_and_metrics_only(
    node: StandInNode, access: OperatorAccess, headers: dict[str, str], code: int
) -> None:
    """And nothing happens; a path that is not there is no secret, but is not told either."""
    transport = httpx.ASGITransport(app=create_app(node, access=access))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for method, path in every_request():
            answer = await http.request(method, path, headers=headers)
            assert answer.status_code == (200 if path in OPEN else code), path
            if path not in OPEN:
                assert set(answer.json()) == {"error", "hint"}, path
            assert not node.draining, path


async def test_strangers_take_no_place_of_metrics_from_operators(node: StandInNode) -> None:
    """One address may have some of the places of those without a token, and an operator has others."""
    app = create_app(node, access=OperatorAccess(token="a-token-of-24-characters"))
    token = {"Authorization": "Bearer a-token-of-24-characters"}
    is_over = False

    def others() -> Generator[None, None, None]:
        while not is_over:
            yield

    transport = httpx.ASGITransport(app=app, client=("192.0.2.1", 1))
    async with asyncio.timeout(20), httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        working = asyncio.create_task(node.browser.slices.run(others()))
        strangers = [asyncio.create_task(client.get("/metrics")) for _ in range(20)]
        refused, _ = await asyncio.wait(strangers, return_when=asyncio.FIRST_COMPLETED)
        operator = asyncio.create_task(client.get("/metrics", headers=token))
        while len(refused) < 12:
            refused = {one for one in strangers if one.done()}
            await asyncio.sleep(0)
        is_over = True
        await working
        assert (await operator).status_code == 200
        codes = [(await one).status_code for one in strangers]
    assert (codes.count(200), codes.count(429)) == (8, 12)


async def test_operators_have_the_token(node: StandInNode) -> None:
    """Whatever name they use for the node."""
    app = create_app(node, access=OperatorAccess(token="a-token-of-24-characters"))
    right = {"Authorization": "Bearer a-token-of-24-characters"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://node") as http:
        refused = await http.get("/v1/clients")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/v1/clients", headers=right)).status_code == 200
        assert (await http.get("/v1/status", headers=right)).status_code == 200


@pytest.mark.parametrize("path", ["/livez/", "/v1/status/"])
async def test_no_answer_leads_to_the_host_that_was_named(http: httpx.AsyncClient, path: str) -> None:
    """A path with a slash too many is no path; a redirect would repeat the Host of whoever asks."""
    answer = await http.get(path)
    assert (answer.status_code, "location" in answer.headers) == (404, False)
