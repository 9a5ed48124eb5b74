"""Tests of `fanout.certificates`."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.certificates import expiry_s, file_expiry_s, fingerprint
from tests.support.certificates import Authority


def by_openssl(path: Path, option: str) -> str:
    """Return what OpenSSL says of a certificate."""
    command = ["openssl", "x509", "-in", str(path), "-noout", option, "-sha256"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().partition("=")[2]


@pytest.mark.parametrize("days", [-10, 3, 10_000, 40_000])  # both forms of a time in a certificate, since 2050
def test_the_end_is_that_which_openssl_tells(tmp_path: Path, days: int) -> None:
    """And so is the fingerprint."""
    path, _ = Authority(tmp_path).issue("a", valid=(timedelta(days=-20), timedelta(days=days)))
    certificate = ssl.PEM_cert_to_DER_cert(path.read_text())
    told = datetime.strptime(by_openssl(path, "-enddate"), "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    assert expiry_s(certificate) == file_expiry_s(path) == int(told.timestamp())
    assert fingerprint(certificate) == by_openssl(path, "-fingerprint").replace(":", "").lower()


def test_a_chain_ends_with_its_first_and_an_authority_with_its_last(tmp_path: Path) -> None:
    """A file without certificates, or none at all, has no end."""
    authority = Authority(tmp_path)
    early, late = (
        authority.issue(name, valid=(-timedelta(days=1), timedelta(days=days)))[0]
        for name, days in (("early", 1), ("late", 9))
    )
    both = tmp_path / "both.pem"
    both.write_bytes(late.read_bytes() + b"text between\n" + early.read_bytes())
    assert file_expiry_s(both) == file_expiry_s(early)
    assert file_expiry_s(both, of_all=True) == file_expiry_s(late)
    both.write_text("-----BEGIN CERTIFICATE-----\n&&&\n-----END CERTIFICATE-----\n")
    assert file_expiry_s(both) is None
    assert file_expiry_s(tmp_path / "none.pem") is None


@given(data=st.data())
def test_what_is_no_certificate_has_no_end(data: st.DataObject) -> None:
    """Whatever bytes a stranger shows: a time or None, and no error."""
    certificate = bytearray(data.draw(st.binary(max_size=200)))
    assert expiry_s(bytes(certificate)) is None or isinstance(expiry_s(bytes(certificate)), int)


@given(data=st.data())
def test_a_damaged_certificate_raises_nothing(data: st.DataObject) -> None:
    """Each byte of a real one may be another."""
    certificate = bytearray(CERTIFICATE)
    for _ in range(data.draw(st.integers(1, 5))):
        certificate[data.draw(st.integers(0, len(certificate) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(certificate)))
    assert isinstance(expiry_s(bytes(certificate[:end])), int | None)


CERTIFICATE = ssl.PEM_cert_to_DER_cert(
    """-----BEGIN CERTIFICATE-----
MIIBbjCCAROgAwIBAgIUKX4+QcvMMrK7IBjIrwFO/e/qmiAwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBeDAeFw0yNjExMjIxOTIyMzhaFw0yNjExMjQxOTIyMzhaMAwx
CjAIBgNVBAMMAXgwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATChTmGiQyrbVeO
s0RO0XahB24ewceOBi2GwA9+5e+/EzSFgZUL6shyAFdPaGJYJwDTmLnYBkLQ+UrE
bsrwvz5lo1MwUTAdBgNVHQ4EFgQUeUYgZ0/X7xs991NxyYq79uS9XTgwHwYDVR0j
BBgwFoAUeUYgZ0/X7xs991NxyYq79uS9XTgwDwYDVR0TAQH/BAUwAwEB/zAKBggq
hkjOPQQDAgNJADBGAiEAo2GZQJfhs/YVizPzoIyZ5Sh06b+Y5kiVX1dTJHT9oe8C
IQC4YSyD4ASBfianyJj9hrMSzxv8/jfz+ncAUMGq0VZIxA==
-----END CERTIFICATE-----
"""
)
