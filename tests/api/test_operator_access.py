"""Who is an operator over HTTP."""

from __future__ import annotations

import pytest

from fanout.api.operator_access import OperatorAccess

TOKEN = "a-token-of-24-characters"


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        (f"Bearer {TOKEN}", None),
        (f"bearer  {TOKEN} ", None),
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        ("Bearer \u00fc", 401),
    ],
)
def test_a_token_that_is_set_is_wanted_everywhere(loopback: bool, authorization: str | None, code: int | None) -> None:
    """On loopback too, since a proxy of this machine may lead there; any name of the node does then."""
    headers = {"host": "proxy.example"} | ({} if authorization is None else {"authorization": authorization})
    assert code_of(OperatorAccess(token=TOKEN, loopback=loopback), headers) == code


def test_without_a_token_loopback_alone_is_allowed() -> None:
    """Elsewhere no token helps, and the answer says which key to set."""
    assert OperatorAccess(loopback=True).refusal({}) is None
    refusal = OperatorAccess().refusal({"authorization": f"Bearer {TOKEN}"})
    assert refusal is not None
    assert refusal.status_code == 403
    assert "http.token_file" in refusal.hint


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8080", None),
        ("[::1]:8080", None),
        ("[::1]", None),
        ("localhost", None),
        ("LOCALHOST:8080", None),
        ("10.0.0.7", None),
        ("Edge-1.example:8080", None),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("edge-1.example.evil.example", 403),
        ("", 403),
    ],
)
def test_host_names_this_machine_where_no_token_is_wanted(host: str, code: int | None) -> None:
    """A page whose name leads here by its owner's DNS has that name in Host."""
    assert code_of(OperatorAccess(loopback=True, hosts=frozenset({"edge-1.example"})), {"host": host}) == code


@pytest.mark.parametrize("access", [OperatorAccess(loopback=True), OperatorAccess(token=TOKEN)])
def test_pages_in_a_browser_are_refused(access: OperatorAccess) -> None:
    """With the token too: a page cannot have it, and an extension that has it should be a command."""
    operator = {"host": "localhost", "authorization": f"Bearer {TOKEN}"}
    assert code_of(access, operator) is None
    assert code_of(access, operator | {"sec-fetch-site": "same-origin"}) is None
    for field in (
        {"origin": "https://page.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert code_of(access, operator | field) == 403


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://10.0.0.5:8080", None),
        ("https://10.0.0.5:8080", None),
        ("HTTP://10.0.0.5:8080", None),
        ("http://10.0.0.5", 403),
        ("http://10.0.0.5:80", 403),
        ("http://10.0.0.6:8080", 403),
        ("http://a.10.0.0.5:8080", 403),
        ("ftp://10.0.0.5:8080", 403),
        ("10.0.0.5:8080", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_the_page_of_a_node_over_plain_http_may_post(origin: str, code: int | None) -> None:
    """A browser sends Origin with it, and Sec-Fetch-Site to localhost and over TLS only."""
    operator = {"host": "10.0.0.5:8080", "authorization": f"Bearer {TOKEN}", "origin": origin}
    assert code_of(OperatorAccess(token=TOKEN), operator) == code
    for site in ("cross-site", "same-site", "none"):
        assert code_of(OperatorAccess(token=TOKEN), operator | {"sec-fetch-site": site}) == 403


def code_of(access: OperatorAccess, headers: dict[str, str]) -> int | None:
    """Return the status code of the refusal; None for none."""
    refusal = access.refusal(headers)
    return None if refusal is None else refusal.status_code


def test_token_is_in_no_text() -> None:
    """A log line with the object does not show it."""
    assert TOKEN not in repr(OperatorAccess(token=TOKEN))
