"""The page of a node in headless Chromium."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from fanout.api.browse.models import DifferingTopicView, MemberNotCompared, TopicView
from fanout.api.operator_access import OperatorAccess
from fanout.reports.render.page import render_page
from tests.api.stand_in import SINCE, StandInNode, pool_member, ready_node, serving, snapshot_link
from tests.node.browse.pieces import Node, value
from tests.reports.documents import whole_report
from tests.support.chromium import Browser, browsing

HOSTILE = "plant/<img src=x onerror=alert(1)>/\u202eevil"
PAGES = ("overview", "topics", "clients", "pool", "report", "events")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One headless Chromium for all tests."""
    with browsing(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def topics() -> Node:
    """Return topics, one of them hostile."""
    topics = Node([f"plant/line{number}/temp" for number in range(150)], own=[HOSTILE])
    topics.publish(value("plant/line1/temp", b'{"v": [1, 2]}'), value(HOSTILE, b"<script>alert(1)</script>"))
    topics.browser.note("state", link="plant", state="live")
    return topics


@pytest.fixture
def node(topics: Node) -> StandInNode:
    """Return a node with these topics."""
    node = ready_node()
    node.browser = topics.browser
    return node


def wait_for(browser: Browser, condition: str) -> None:
    """Return once a condition holds in the page."""
    end_s = time.monotonic() + 60
    while not browser.ask(f"Boolean({condition})"):
        assert time.monotonic() < end_s, browser.ask("document.body.innerText")
        time.sleep(0.05)


def text_has(text: str) -> str:
    """Return the condition that the page shows a text."""
    return f"document.body.innerText.includes({json.dumps(text)})"


def test_the_overview_tells_whether_the_node_is_ready(browser: Browser, node: StandInNode) -> None:
    """State and reasons are in words; nothing is asked of another server."""
    with serving(node) as url:
        browser.requested.clear()
        browser.show(f"{url}/", width=1280)
        wait_for(browser, text_has("edge-1 is ready"))
        wait_for(browser, text_has("200,000"))
        node.links = (snapshot_link(),)
        node.reasons = ("link plant: snapshot, 12,040 topics so far",)
        wait_for(browser, text_has("edge-1 is not ready"))
        wait_for(browser, text_has("link plant: snapshot, 12,040 topics so far"))
        wait_for(browser, "document.querySelector('progress')")
        assert browser.requested
        assert all(one.startswith(url) for one in browser.requested if not one.startswith("about:"))


def test_the_overview_tells_what_should_be_looked_at(browser: Browser, node: StandInNode) -> None:
    """Also of a node that is ready: a right that was forgotten, unconfirmed topics, a full disk, slow clients."""
    (selector,) = node.links[0].selectors
    unreadable = selector.model_copy(update={"filter": "office/#", "maybe_unreadable": True})
    alarm = "9 topics did not come from the primary and are kept"
    node.links = (node.links[0].model_copy(update={"selectors": (selector, unreadable), "alarm": alarm}),)
    assert node.log is not None
    node.log = node.log.model_copy(update={"alarm": "the replication log cannot be written: No space left on device"})
    with serving(node) as url:
        browser.show(f"{url}/#overview", width=1280)
        wait_for(browser, text_has("To be looked at"))
        for text in (
            "office/# has no topics: there are none, or the primary's access rules (ACL)",
            f"plant: {alarm}",
            "Log: the replication log cannot be written: No space left on device. Clients are served all the same",
            "Pool: 2 of 3 members are not ready; see Pool",
            "Messages that clients did not get: queue full 4, expired 1; see Clients",
            "Waiting for clients that are slow or away: 6 messages",
        ):
            assert browser.ask(text_has(text)), browser.ask("document.body.innerText")


def test_members_that_differ_are_told_with_their_topics(browser: Browser, node: StandInNode) -> None:
    """Since when, which topics, which member lacks the update, and where to go on; asked once, and by the button."""
    node.members = (node.members[0], pool_member(digest_equal=False, digest_equal_since=SINCE))
    held = TopicView(
        topic="plant/line1/temp",
        value="running",
        format="text",
        payload_bytes=7,
        qos=1,
        received=SINCE,
        link="plant",
        selector="plant/#",
        digest="00000000000000aa",
    )
    one = DifferingTopicView(topic=held.topic, suspect="edge-2", values={"edge-1": held, "edge-2": None})
    hostile = DifferingTopicView(topic=HOSTILE, suspect="edge-2", values={"edge-1": held, "edge-2": held})
    left_out = (MemberNotCompared(node="edge-3", reason="nothing answers there"),)
    node.comparison = node.comparison.model_copy(update={"differing": (one, hostile), "left_out": left_out})
    with serving(node) as url:
        browser.show(f"{url}/#pool", width=1280)
        for text in (
            "edge-2 and this node hold different values since 2025-11-21 08:00:00 UTC.",
            "differs from 1 of 1 others",
            "no, since 2025-11-21 08:00:00 UTC",
            "2 of 200,000 topics differ at edge-1, edge-2; compared at 2025-11-21 08:00:00 UTC.",
            "edge-3 is not compared: nothing answers there",
            "no value",
            f"fanout explain --pool '{held.topic}' {url}",
        ):
            wait_for(browser, text_has(text))
        assert not browser.ask(text_has("hold the same."))
        assert browser.ask("[...document.querySelectorAll('td .bad')].map((one) => one.textContent)") == ["edge-2"] * 2
        assert len(node.compared_with) == 1
        browser.ask("document.querySelector('td button').click()")
        wait_for(browser, "location.hash === '#topics'")
        wait_for(browser, text_has('{\n  "v": [\n    1,\n    2\n  ]\n}'))
        browser.ask("location.hash = '#pool'")
        wait_for(browser, text_has(HOSTILE))
        assert browser.ask("document.querySelectorAll('main img, main script').length") == 0
        node.comparison = node.comparison.model_copy(update={"differing": ()})
        again = "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Compare topics')?.click()"
        wait_for(browser, f"{text_has('No topic of 200,000 differs')} || {again}")


def test_a_pool_whose_members_are_equal_is_not_compared(browser: Browser, node: StandInNode) -> None:
    """Nor told to be equal where that is not known."""
    with serving(node) as url:
        browser.show(f"{url}/#pool", width=1280)
        wait_for(browser, text_has("All members are ready and hold the same."))
        node.members = (node.members[0], pool_member(digest_equal=None))
        wait_for(browser, text_has("not known"))
        assert browser.ask(text_has("All members are ready."))
        assert node.compared_with == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read(browser: Browser, node: StandInNode, width: int, scheme: str) -> None:
    """On a telephone too, light and dark: no wider than the window, and with contrast."""
    with serving(node) as url:
        for page in PAGES:
            browser.show("about:blank", width=width)
            browser.show(f"{url}/#{page}", width=width, scheme=scheme)
            wait_for(
                browser,
                "document.querySelector('main').children.length && document.getElementById('verdict').textContent",
            )
            assert browser.ask("document.documentElement.scrollWidth") <= width, page
            assert browser.poor_contrasts() == [], page


def test_topics_are_found_in_the_tree_and_by_search(browser: Browser, node: StandInNode, topics: Node) -> None:
    """A branch opens, a topic shows its value; names and values of strangers stay text."""
    with serving(node) as url:
        browser.show(f"{url}/#topics", width=1280)
        wait_for(browser, text_has("plant/"))
        browser.ask("document.querySelector('.tree button').click()")
        wait_for(browser, text_has("<img src=x onerror=alert(1)>/"))
        wait_for(browser, text_has("more …"))
        field = "document.querySelector('input[type=search]')"
        browser.ask(f"{field}.value = 'LINE1/ temp'; {field}.form.requestSubmit()")
        wait_for(browser, text_has("1 topic, of 152"))
        browser.ask("document.querySelector('td button').click()")
        wait_for(browser, text_has('{\n  "v": [\n    1,\n    2\n  ]\n}'))
        for payload in (b'{"v": [1, 2]}', b'{"v": [1, 3], "w": "<b>"}'):
            topics.loop.call_soon_threadsafe(topics.publish, value("plant/line1/temp", payload))
        wait_for(browser, text_has('v.1: 2 → 3\nw: – → "<b>"'))
        browser.ask(f"{field}.value = 'evil'; {field}.form.requestSubmit()")
        wait_for(browser, text_has("<script>alert(1)</script>"))
        assert browser.ask("document.querySelectorAll('main img, main script').length") == 0


def test_events_and_messages_come_by_a_stream(browser: Browser, node: StandInNode, topics: Node) -> None:
    """No question is repeated for them; a value that a stream cuts is asked for, once for many messages."""
    field = "document.querySelector('input[type=search]')"
    with serving(node) as url:
        browser.show(f"{url}/#topics", width=1280)
        wait_for(browser, field)
        browser.ask(f"{field}.value = 'line1/ temp'; {field}.form.requestSubmit()")
        wait_for(browser, "document.querySelector('td button')")
        browser.requested.clear()
        streams = len(topics.observers)
        browser.ask("document.querySelector('td button').click()")
        wait_for(browser, text_has("None came since you look at it."))
        end_s = time.monotonic() + 60
        while len(topics.observers) == streams:
            assert time.monotonic() < end_s
            time.sleep(0.05)
        same = value("plant/line1/temp", b"same")  # two messages, though their time and value are equal
        topics.loop.call_soon_threadsafe(topics.publish, same, same)
        wait_for(browser, "document.querySelectorAll('[aria-label=\"Last messages\"] tbody tr').length === 2")
        for number in range(30):
            topics.loop.call_soon_threadsafe(topics.publish, value("plant/line1/temp", b"number %d" % number))
        wait_for(browser, text_has("number 29"))
        wait_for(browser, "document.querySelectorAll('[aria-label=\"Last messages\"] tbody tr').length === 20")
        assert sum("/v1/topics/" in one for one in browser.requested) <= 3
        for number in range(30):
            topics.loop.call_soon_threadsafe(
                topics.publish, value("plant/line1/temp", b"%d" % number + b"." * 8000 + b"end %d" % number)
            )
        wait_for(browser, "document.querySelector('pre').innerText === '29' + '.'.repeat(8000) + 'end 29'")
        assert sum("/v1/topics/" in one for one in browser.requested) <= 6
        browser.ask("location.hash = 'events'")
        wait_for(browser, text_has("Link plant is live"))
        for state in ("stalled", "live"):
            topics.loop.call_soon_threadsafe(partial(topics.browser.note, "state", link="plant", state=state))
        wait_for(browser, "document.querySelectorAll('tbody tr').length === 3")
        assert browser.ask("document.querySelector('tbody').innerText.includes('is stalled')")
        browser.requested.clear()

        def note_many() -> None:
            for number in range(100):
                topics.browser.note("state", link="plant", state="live" if number % 2 else "stalled")

        topics.loop.call_soon_threadsafe(note_many)
        wait_for(browser, "document.querySelectorAll('tbody tr').length === 103")
        assert len(browser.requested) < 20


def test_a_client_is_shown_with_its_subscriptions_and_kicked(browser: Browser, node: StandInNode) -> None:
    """A second press of the button ends its connection."""
    button = "document.querySelector('section[aria-label=Client] button')"
    with serving(node) as url:
        browser.show(f"{url}/#clients", width=1280)
        wait_for(browser, "document.querySelector('td button')")
        browser.ask("document.querySelector('td button').click()")
        wait_for(browser, button)
        wait_for(browser, text_has("plant/#"))
        browser.ask(f"{button}.click()")
        assert node.kicked == []
        browser.ask(f"{button}.click()")
        wait_for(browser, text_has("The connection is ended"))
        assert node.kicked == [("app-1", False)]


def test_long_names_do_not_make_a_page_wider(browser: Browser, node: StandInNode) -> None:
    """A client or topic that is shown, with the table of its readers, fits a telephone: names break anywhere."""
    width = 360
    with serving(node) as url:
        browser.show(f"{url}/#clients", width=width)
        wait_for(browser, "document.querySelector('td button')")
        browser.ask("document.querySelector('td button').click()")
        wait_for(browser, "document.querySelector('section[aria-label=Client] h2')")
        browser.ask("document.querySelector('section[aria-label=Client] h2').textContent = 'x'.repeat(300)")
        assert browser.ask("document.documentElement.scrollWidth") <= width
        browser.show("about:blank", width=width)
        browser.show(f"{url}/#topics", width=width)
        part = "document.querySelector('.split > :last-child')"
        wait_for(browser, part)
        row = f"<p>{'x' * 300}</p><div class=wide><table><th>{'x' * 300}</table></div>"
        browser.ask(f"{part}.insertAdjacentHTML('beforeend', {json.dumps(row)})")
        assert browser.ask("document.documentElement.scrollWidth") <= width


def test_the_busiest_branch_is_shown_with_who_reads_it(
    browser: Browser, node: StandInNode, topics: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client with its filter, and the way to the client; branches of the tree have it too."""
    monkeypatch.setattr("fanout.node.browse.activity._INTERVAL_S", 0.2)
    messages = [value(f"plant/line{number}/temp") for number in range(150)]
    with serving(node) as url:
        while not httpx.get(f"{url}/v1/top", timeout=30, trust_env=False).json()["branches"]:
            topics.loop.call_soon_threadsafe(topics.publish, *messages)
        monkeypatch.setattr("fanout.node.browse.activity._INTERVAL_S", 3600.0)
        browser.show(f"{url}/#topics", width=1280)
        branch = "[...document.querySelectorAll('td button')].find((one) => one.textContent === 'plant/#')"
        wait_for(browser, branch)
        browser.ask(f"{branch}.click()")
        readers = "document.querySelector('section[aria-label=\"Who reads it\"] td')?.parentNode.innerText"
        wait_for(browser, f"{readers}?.startsWith('app-1\\tplant/#\\t')")
        browser.ask("document.querySelector('.tree button').click()")
        wait_for(browser, text_has("line1/"))
        wait_for(browser, f"{readers}?.startsWith('app-1')")
        browser.ask("document.querySelector('section[aria-label=\"Who reads it\"] td button').click()")
        wait_for(browser, "document.querySelector('section[aria-label=Client] button')")


def test_lag_and_changes_are_shown(browser: Browser, node: StandInNode) -> None:
    """The node remembers the lag of the last hour, and the members of a JSON value that changed are named."""
    for seconds in (0.2, None, 0.1):
        node.browser.lags.note({"plant": seconds})
    with serving(node) as url:
        browser.show(f"{url}/#overview", width=1280)
        wait_for(browser, text_has("now 100.0 ms, at most 200.0 ms"))
        assert browser.ask("document.querySelector('figure path').getAttribute('d')") == "M0.0 6.0M1000.0 51.0"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_last_report_is_shown_in_full(browser: Browser, node: StandInNode, tmp_path: Path, scheme: str) -> None:
    """With its own style sheet, light and dark, and its age; a script that came into it does not run."""
    page = render_page(whole_report())
    hostile = "<script>parent.document.title = 'run'</script><img src=/livez onerror=\"parent.document.title = 'run'\">"
    path = tmp_path / "report.html"
    path.write_text(page.replace("<h1>", f"{hostile}<h1>", 1))
    made_s = time.time() - 3 * 3600 - 60
    os.utime(path, (made_s, made_s))
    inside = "document.querySelector('iframe').contentDocument"
    with serving(node, report=path, access=OperatorAccess(token="a-token-of-24-characters")) as url:
        browser.show(f"{url}/#report", width=360, scheme=scheme)
        wait_for(browser, "document.querySelector('form.token')")
        browser.ask("document.querySelector('[name=token]').value = 'a-token-of-24-characters'")
        browser.ask("document.querySelector('form.token').requestSubmit()")
        wait_for(browser, text_has("3 hours ago"))
        wait_for(browser, f"{inside}?.querySelector('h1')?.textContent.startsWith('Replication report')")
        ground = browser.ask(f"getComputedStyle({inside}.body).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")
        wait_for(browser, f"document.querySelector('iframe').offsetHeight >= {inside}.documentElement.offsetHeight")
        assert browser.ask("document.documentElement.scrollWidth") <= 360
        assert browser.ask("document.title") == "edge-1: ready"
        browser.ask("sessionStorage.clear()")


def test_without_a_report_the_page_says_how_to_make_one(browser: Browser, node: StandInNode, tmp_path: Path) -> None:
    """With the key of the configuration, and the command."""
    with serving(node) as url:
        browser.show(f"{url}/#report", width=1280)
        wait_for(browser, text_has("There is no report to show: the configuration names no report."))
        assert browser.ask(text_has('http.report = "report.html"'))


def test_keys_reach_everything(browser: Browser, node: StandInNode) -> None:
    """The tabulator goes through the links of the pages to the search and the tree."""
    with serving(node) as url:
        browser.show(f"{url}/#topics", width=1280)
        wait_for(browser, "document.querySelector('.tree button')")
        order = []
        for _ in range(10):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            order.append(browser.ask("document.activeElement.textContent || document.activeElement.name"))
        assert order == [
            "To the content",
            *("Overview", "Topics", "Clients", "Pool", "Report", "Events"),
            "search",
            "Find",
            "plant/",
        ]


def test_a_stream_that_is_refused_is_told(browser: Browser, node: StandInNode) -> None:
    """The page tells that events do not come, until they come again; another token is asked for."""
    text = "Live updates are interrupted: too many streams are open"
    with serving(node) as url:
        browser.show(f"{url}/#overview", width=1280)
        wait_for(browser, text_has("edge-1 is ready"))
        browser.ask("""
            window.refused = 429;
            const ask = window.fetch, error = "too many streams are open";
            window.fetch = (path, options) => window.refused && options.headers.Accept === "text/event-stream"
              ? Promise.resolve(Response.json({ error, hint: "" }, { status: window.refused }))
              : ask(path, options);
            location.hash = "events";
        """)
        wait_for(browser, text_has(text))
        browser.ask("window.refused = 0")
        wait_for(browser, f"!{text_has(text)}")
        browser.ask("window.refused = 401; location.hash = 'overview'")
        wait_for(browser, text_has("delivered"))
        browser.ask("location.hash = 'events'")
        wait_for(browser, "document.querySelector('form.token')")
        wait_for(browser, text_has("edge-1 is ready"))


def test_a_token_is_asked_for(browser: Browser, node: StandInNode) -> None:
    """Without it the page shows nothing of the node but its state."""
    with serving(node, access=OperatorAccess(token="a-token-of-24-characters")) as url:
        for page in ("overview", "events"):
            browser.show("about:blank", width=1280)
            browser.show(f"{url}/#{page}", width=1280)
            wait_for(browser, "document.querySelector('form.token')")
            wait_for(browser, text_has("edge-1 is ready"))
            assert browser.ask("document.title") == "edge-1: ready"
        assert "Link plant is live" not in browser.ask("document.body.innerText")
        browser.ask("document.querySelector('[name=token]').value = 'a-token-of-24-characters'")
        browser.ask("document.querySelector('form.token').requestSubmit()")
        wait_for(browser, text_has("Link plant is live"))
        browser.ask("sessionStorage.clear()")


def test_the_page_obeys_a_strict_policy(node: StandInNode, tmp_path: Path) -> None:
    """Only files of the node itself may run."""
    with serving(node) as url:
        answer = httpx.get(f"{url}/", trust_env=False)
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        assert httpx.get(f"{url}/page/../models.py", trust_env=False).status_code == 404
