"""The HTML page (and its style sheet)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from fanout.reports.render.page import STYLE, render_page
from fanout.reports.values.document import Report, ReportName
from tests.reports.documents import HOSTILE, report, section_report, stamped, target, unstamped, whole_report
from tests.reports.render.test_answers import answered, node


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


def hostile_page() -> str:
    """Return a page in which every name and topic is hostile."""
    targets = (
        target(HOSTILE, topic_filter=HOSTILE, figures=stamped(missing=3), exclude=(HOSTILE,)),
        target(HOSTILE, figures=unstamped(missing=2), held=False),
    )
    return render_page(report(*targets, hostile=True, fail_under=99.9))


def test_a_page_refers_to_nothing_outside_itself() -> None:
    """No element loads or links anything, whatever is in the topics, and nothing needs the network."""
    elements = Elements(hostile_page())
    for tag, attributes in elements.found:
        assert not {"src", "xlink:href", "action", "data", "srcset", "style"} & set(attributes), tag
        assert (attributes.get("href") or "#").startswith("#"), tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert not {tag for tag, _ in elements.found} & {"link", "img", "iframe", "object", "base", "form"}
    assert "url(" not in STYLE
    assert "@import" not in STYLE
    assert "http" not in render_page(report()).replace("http-equiv", "")


def test_topics_are_text_and_never_markup() -> None:
    """A topic that ends a script or begins one is shown as it is spelt; the embedded JSON holds it exactly."""
    page = hostile_page()
    elements = Elements(page)
    assert [a for tag, a in elements.found if tag == "script"] == [{"type": "application/json", "id": "report"}]
    assert "<script>alert" not in page
    assert page.count("</script>") == 1
    assert "a/&lt;/script&gt;&lt;script&gt;alert(1)" in page
    for invisible in ("\x1b", "\u202e", "\u2028"):
        assert invisible not in page
    embedded = Report.model_validate_json(elements.texts["script"])
    assert embedded.targets[0].filter == HOSTILE
    assert json.loads(elements.texts["script"])["format"] == "fanout-report"


def test_the_policy_allows_the_style_sheet_and_nothing_else() -> None:
    """The hash in the Content Security Policy is that of the style sheet; there is no other source."""
    elements = Elements(hostile_page())
    policy = next(a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(elements.texts["style"].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_the_page_is_readable_in_light_and_dark() -> None:
    """Every colour of the light theme has its counterpart in the dark one."""
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    names = re.findall(r"--[a-z-]+(?=:)", light)
    assert names
    assert sorted(names) == sorted(re.findall(r"--[a-z-]+(?=:)", dark.split("}")[0]))


def test_a_page_begins_with_what_cannot_be_known() -> None:
    """The limit of the union stands between the heading and everything else; a primary has none."""
    page = render_page(report(target(), fail_under=99, reference="union"))
    limit = page.index("The secondaries are compared with one another only")
    assert page.index("<h1>") < limit < page.index('class="verdict')
    assert "compared with one another" not in render_page(report(target(), fail_under=99))


def test_the_page_shows_what_the_report_holds() -> None:
    """Notices, verdict, tables and charts are all there, and what can be long is folded."""
    page = render_page(report(target(figures=stamped(missing=1)), target("other", figures=unstamped()), fail_under=99))
    for part in (
        "Stamped: exact relative to hub.",
        "edge was looked at.",
        "Failed: lowest",
        "Updates, one by one",
        'id="propagation"',
        '<details id="missing">',
        "20 of 1,234.",
    ):
        assert part in page
    assert page.count("<svg viewBox") == 3


def test_a_thousand_selectors_leave_the_page_readable() -> None:
    """Tables are closed."""
    targets = [
        target(f"edge-{number % 2}", topic_filter=f"plant/{number}/#", figures=stamped(missing=number == 700))
        for number in range(1000)
    ]
    page = render_page(report(*targets))
    assert page.count("<summary>1,000 rows</summary>") == 2
    assert "<summary>" not in render_page(report(target())).partition("<details id")[0].partition('id="prefixes"')[0]


def test_a_lag_report_has_no_headline_of_completeness() -> None:
    """Without targets there are no answers, and without values over time no charts."""
    nothing = {"targets": (), "reference": None, "window": None, "notices": (), "over_time": None}
    made = report().model_copy(update=nothing)
    empty = made.model_copy(update={"lag": made.lag.model_copy(update={"over_time": (), "propagation": ()})})
    page = render_page(empty)
    assert '<div class="notices"' not in page
    assert "<svg viewBox" not in page
    assert "<title>fanout completeness</title>" in page


def test_pages_of_single_sections_are_as_safe_as_the_others() -> None:
    """Hostile names are text in the tables and in the timeline; the timeline has a bar for each epoch's parts."""
    names: tuple[ReportName, ...] = ("snapshots", "convergence", "stalls", "traffic")
    for name in names:
        page = render_page(section_report(name, place=HOSTILE))
        elements = Elements(page)
        assert [a for tag, a in elements.found if tag == "script"] == [{"type": "application/json", "id": "report"}]
        assert Report.model_validate_json(elements.texts["script"]).report == name
        assert "\x1b" not in page
    page = render_page(section_report("snapshots"))
    for kind, bars in (("pending", 3), ("applied", 2), ("unknown", 1), ("different", 1)):
        assert page.count(f'<rect class="{kind}" x=') == bars, kind


def test_a_page_on_everything_has_its_parts_in_reading_order() -> None:
    """Headline, completeness, what is missing and stalled, epochs, lag, traffic; the list of contents names each."""
    elements = Elements(render_page(whole_report()))
    parts = [a["id"] for tag, a in elements.found if tag in ("section", "details") and "id" in a]
    order = ["updates", "final-values", "prefixes", "missing", "stalls", "stalled-topics", "convergence"]
    order += ["snapshots", "epochs", "propagation", "ready", "traffic", "traffic-prefixes", "logs"]
    assert [part for part in parts if part in order] == order
    assert [a["href"] for tag, a in elements.found if tag == "a"] == [f"#{part}" for part in parts]
    assert [a for tag, a in elements.found if tag == "table" and a.get("class") == "heat"]


def test_what_the_clocks_say_is_behind_what_is_corrected() -> None:
    """The picture of lag stands above all tables; whole distributions have the clocks in them and are folded away."""
    over_time, shares, rest = "in windows of 10 s.", "as the clocks say</h3>", "<h2>All figures</h2>"
    page = render_page(answered(node(), answer="complete"))
    assert page.index(over_time) < page.index(rest) < page.index(shares)
    alone = render_page(report())
    assert alone.index(over_time) < alone.index(shares)
    for each in (page, alone):
        assert each.count(over_time) == each.count(shares) == 1


def test_a_page_on_everything_is_as_safe_as_the_others() -> None:
    """Hostile names stay text in every section and in the list of contents."""
    elements = Elements(render_page(whole_report(place=HOSTILE)))
    assert [a for tag, a in elements.found if tag == "script"] == [{"type": "application/json", "id": "report"}]
    assert Report.model_validate_json(elements.texts["script"]).report == "all"
    assert all(re.fullmatch("#[a-z-]+", a["href"] or "") for tag, a in elements.found if tag == "a")


def test_a_long_list_does_not_push_what_follows_out_of_sight() -> None:
    """On a page of many parts a list of more than a dozen is closed; what is folded says how much it holds."""
    made = whole_report()
    assert made.stalls is not None
    topics = made.stalls.topics.model_copy(update={"total": 70, "listed": made.stalls.topics.listed * 10})
    page = render_page(made.model_copy(update={"stalls": made.stalls.model_copy(update={"topics": topics})}))
    assert "<summary>20 rows</summary>" in page
    assert "<summary>2 rows</summary>" not in page
    assert '<h2>Missing updates</h2> <span class="dim">1,234</span></summary>' in page
    alone = section_report("stalls").model_copy(update={"stalls": made.stalls.model_copy(update={"topics": topics})})
    assert "<summary>20 rows</summary>" not in render_page(alone)


def test_a_timeline_says_what_it_leaves_out() -> None:
    """The list of epochs is cut; the drawing of it says so."""
    assert "The latest 4 of 9 epochs." in render_page(section_report("snapshots"))
