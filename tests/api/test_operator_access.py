"""Who may see and end single clients over HTTP."""

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
    """On loopback too, since a proxy of this machine may lead there."""
    refusal = OperatorAccess(token=TOKEN, loopback=loopback).refusal(authorization)
    assert (None if refusal is None else refusal.status_code) == code


def test_without_a_token_loopback_alone_is_allowed() -> None:
    """Elsewhere no token helps, and the answer says which key to set."""
    assert OperatorAccess(loopback=True).refusal(None) is None
    refusal = OperatorAccess().refusal(f"Bearer {TOKEN}")
    assert refusal is not None
    assert refusal.status_code == 403
    assert "http.token_file" in refusal.hint


def test_token_is_in_no_text() -> None:
    """A log line with the object does not show it."""
    assert TOKEN not in repr(OperatorAccess(token=TOKEN))
