"""Certificates and keys in PEM files: loading, faults, expiry (RFC 5280, section 4.1)."""

from __future__ import annotations

import re
import ssl
from base64 import b64decode
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from fanout.runtime.regular_files import open_regular

__all__ = [
    "EXPIRING_S",
    "client_context",
    "expiry_s",
    "file_expiry_s",
    "fingerprint",
    "load_authorities",
    "load_chain",
]

EXPIRING_S: Final = 30 * 86_400
"""Time before the expiry of a certificate at which a warning begins."""

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ARMOUR = re.compile(rb"-----[A-Z ]+-----")
_INTEGER, _UTC_TIME, _GENERALIZED_TIME, _SEQUENCE, _VERSION = 0x02, 0x17, 0x18, 0x30, 0xA0
_LONG_FORM = 0x80
_FILE_BYTES_MAX: Final = 16 << 20
"""Longest file that is read: the authorities of an operating system have 0.2 MiB."""


def load_chain(context: ssl.SSLContext, certificate: Path, key: Path, *, prefix: str = "") -> list[tuple[str, str]]:
    """Load a certificate and its key; return faults as pairs of configuration key and problem.

    Args:
        context: Gets both.
        certificate: PEM, followed by the intermediate certificates.
        key: PEM, not encrypted.
        prefix: Prefix of the keys `certificate_file` and `key_file`.
    """
    of_certificate, of_key = f"{prefix}certificate_file", f"{prefix}key_file"
    faults = [
        (name, f"cannot read its {name}, {path}: {reason}")
        for name, path in ((of_certificate, certificate), (of_key, key))
        if (reason := _why_unreadable(path))
    ]
    if faults:
        return faults
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return [(of_key, f"the key in {key} does not belong to the certificate in {certificate}")]
        return [(of_certificate, f"{certificate} and {key} are not a certificate and its key in PEM")]
    except _Encrypted:
        return [(of_key, f"the key in {key} is encrypted; it must have no password")]
    return []


def load_authorities(context: ssl.SSLContext, path: Path, *, name: str) -> list[tuple[str, str]]:
    """Trust the certificates in a PEM file; return faults as pairs of configuration key and problem.

    Args:
        context: Gets them.
        path: The file.
        name: Its key in the configuration.
    """
    if reason := _why_unreadable(path):
        return [(name, f"cannot read its {name}, {path}: {reason}")]
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        return [(name, f"{path} has no certificates in PEM")]
    return []


def client_context(authorities: Path, *, name: str) -> tuple[ssl.SSLContext, list[tuple[str, str]]]:
    """Return a context that trusts a PEM file beside the CAs of the system, and the faults of the file.

    Args:
        authorities: The file.
        name: Its key in the configuration.
    """
    context = ssl.create_default_context()
    # As links do: Python 3.13 refuses authorities without a key usage, which `openssl req -x509` makes.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context, load_authorities(context, authorities, name=name)


def file_expiry_s(path: Path, *, of_all: bool = False) -> int | None:
    """Return the expiry of a PEM file with certificates, in Unix seconds; None without certificates.

    Args:
        path: The file.
        of_all: True if the last certificate to expire counts, as for CAs; else the first, as for a chain.
    """
    try:
        with open_regular(path) as file:
            found = _PEM.findall(file.read(_FILE_BYTES_MAX))
    except OSError:
        return None
    try:
        known = [at_s for one in found if (at_s := expiry_s(b64decode(_ARMOUR.sub(b"", one)))) is not None]
    except ValueError:  # not base64
        return None
    return (max if of_all else min)(known, default=None)


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 digest of a certificate in DER, as hexadecimal digits."""
    return sha256(certificate).hexdigest()


def expiry_s(certificate: bytes) -> int | None:
    """Return the expiry of a certificate in DER, in Unix seconds; None when it cannot be read.

    The standard library gives it for verified certificates only.
    """
    try:
        tag, start, _ = _element(certificate, 0)
        tag, at, _ = _element(certificate, start)  # tbsCertificate
        tag, _, end = _element(certificate, at)
        if tag == _VERSION:
            at = end
        for expected in (_INTEGER, _SEQUENCE, _SEQUENCE):  # serialNumber, signature, issuer
            tag, _, at = _element(certificate, at)
            if tag != expected:
                return None
        tag, at, _ = _element(certificate, at)  # validity
        _, _, at = _element(certificate, at)  # notBefore
        tag, start, end = _element(certificate, at)
        return _unix_s(tag, certificate[start:end].decode("ascii"))
    except (IndexError, ValueError):
        return None


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Return tag, begin and end of the contents of a DER element (X.690, section 8.1)."""
    tag, length, start = data[at], data[at + 1], at + 2
    if length >= _LONG_FORM:
        size = length - _LONG_FORM
        length, start = int.from_bytes(data[start : start + size], "big"), start + size
    return tag, start, start + length


def _unix_s(tag: int, text: str) -> int | None:
    if tag == _UTC_TIME:  # two digits: 1950 to 2049
        text = f"{'19' if text[:2] >= '50' else '20'}{text}"
    elif tag != _GENERALIZED_TIME:
        return None
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())


class _Encrypted(Exception):
    pass


def _refuse_password() -> str:
    raise _Encrypted


def _why_unreadable(path: Path) -> str:
    try:
        with open_regular(path) as file:  # OpenSSL, which opens it once more, would wait for a named pipe
            if len(file.read(_FILE_BYTES_MAX + 1)) > _FILE_BYTES_MAX:
                return f"it is larger than {_FILE_BYTES_MAX >> 20} MiB"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
