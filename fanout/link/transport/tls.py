"""TLS of a link: the context of a connection, certificate pinning, and texts for failed handshakes.

The files are read anew for each connection.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Final

from fanout.certificates import expiry_s, file_expiry_s, fingerprint, load_authorities, load_chain
from fanout.config import Address, LinkConfig
from fanout.errors import TlsFailed

__all__ = ["LinkTls", "find_tls_faults", "load_tls", "load_tls_in_thread", "peer_expires_s"]

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_EXPIRED, _NOT_YET_VALID = 10, 9
_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN, _NO_ISSUER, _NO_ISSUER_OF_LEAF = 18, 19, 20, 21
_HOST_MISMATCH, _ADDRESS_MISMATCH = 62, 64
"""X509_V_ERR_... codes of OpenSSL, in Python `verify_code`."""

_NOT_TLS: Final = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
        "UNEXPECTED_MESSAGE",
    }
)
_TOO_OLD: Final = frozenset(
    {
        "UNSUPPORTED_PROTOCOL",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "NO_PROTOCOLS_AVAILABLE",
        "VERSION_TOO_LOW",
    }
)
_CERTIFICATE_MISSING: Final = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_NO_CERTIFICATE"})
_CERTIFICATE_REFUSED: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know who signed it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "bad certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "not a certificate for clients",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "revoked",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "not acceptable",
    "TLSV1_ALERT_ACCESS_DENIED": "access denied",
    "TLSV1_ALERT_DECRYPT_ERROR": "its key does not fit",
}
"""Alerts about the certificate of the link (RFC 8446, section 6.2); with TLS 1.3 they come after the handshake."""


class _PinFailed(ssl.SSLError):
    """The primary showed a certificate that is not pinned."""

    def __init__(self, seen: str) -> None:
        super().__init__(0, "another certificate than the pinned one")
        self.seen = seen


class _PinnedContext(ssl.SSLContext):
    """A context whose handshakes fail unless the peer shows a pinned certificate."""

    pins: tuple[str, ...] = ()


def _verify_pin(connection: ssl.SSLObject) -> None:
    context = connection.context
    assert isinstance(context, _PinnedContext)
    seen = fingerprint(connection.getpeercert(binary_form=True) or b"")
    if seen not in context.pins:
        raise _PinFailed(seen)


class _PinnedObject(ssl.SSLObject):
    """Pinned TLS for event loops."""

    def do_handshake(self) -> None:
        super().do_handshake()
        _verify_pin(self)


_PinnedContext.sslobject_class = _PinnedObject


@dataclass(frozen=True, slots=True)
class LinkTls:
    """TLS of one connection to a primary."""

    context: ssl.SSLContext
    """Context for the handshake."""
    server_hostname: str
    """Name for SNI, which is also verified."""
    config: LinkConfig = field(repr=False)
    """The link's configuration."""
    client_expires_s: int | None
    """Expiry of the link's client certificate, in Unix seconds; None without one."""

    def failure(self, error: Exception, address: Address) -> TlsFailed:
        """Return the error for a failed handshake, or for an alert after it.

        Args:
            error: Error of OpenSSL, or of the system when the connection ended in the handshake.
            address: Address of the primary.
        """
        problem, hint = self._explain(error)
        return TlsFailed(address=str(address), problem=problem, hint=hint)

    def _explain(self, error: Exception) -> tuple[str, str]:
        if isinstance(error, _PinFailed):
            return (
                f"its certificate is not the pinned one; the fingerprint seen is {error.seen}",
                "If the primary has a new certificate, have its administrator confirm this fingerprint and put it into "
                "server_certificate_sha256; else somebody else answers there",
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._explain_verification(error)
        reason = getattr(error, "reason", None) or ""
        if reason in _CERTIFICATE_MISSING or (
            reason in _CERTIFICATE_REFUSED and self.config.client_certificate_file is None
        ):
            return (
                "it asks for a client certificate, and the link has none",
                "Set client_certificate_file and client_key_file of the link",
            )
        if reason in _CERTIFICATE_REFUSED:
            return (
                f"it refuses the client certificate of the link: {_CERTIFICATE_REFUSED[reason]}",
                "Renew client_certificate_file, or let the primary accept its CA; the primary's log says more",
            )
        if reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
            return (
                "it refused the handshake: no common cipher, or no client certificate that it accepts",
                "Set client_certificate_file and client_key_file if it asks for them; the primary's log says why",
            )
        if reason in _TOO_OLD:
            return (
                f"it speaks no version of TLS that the link accepts, which is {self.config.tls_min_version} or later",
                "Let the primary speak TLS 1.2 or 1.3"
                if self.config.tls_min_version == "1.2"
                else 'Let the primary speak TLS 1.3, or set tls_min_version = "1.2" for the link',
            )
        if reason in _NOT_TLS:
            return (
                "the server there does not speak TLS",
                "Write the port of the primary's listener with TLS, usually 8883; or mqtt:// if that has none",
            )
        if reason == "TLSV1_UNRECOGNIZED_NAME":
            return (
                f"it has no certificate for the name {self.server_hostname}",
                "Write the primary's own host name in primary",
            )
        if isinstance(error, TimeoutError):
            return (
                f"there was no answer to the handshake within {self.config.connect_timeout_s:g} s",
                "Check that the port is that of a listener with TLS",
            )
        if isinstance(error, ssl.SSLEOFError | ConnectionError):
            return (
                "the connection was closed in the handshake",
                "Check that the port is that of a listener with TLS. If it wants a certificate, set "
                "client_certificate_file and client_key_file; else the primary's log says why",
            )
        return reason.lower().replace("_", " ") or str(error), "The primary's log may say why"

    def _explain_verification(self, error: ssl.SSLCertVerificationError) -> tuple[str, str]:
        code, host = error.verify_code, self.server_hostname
        if code in (_HOST_MISMATCH, _ADDRESS_MISMATCH):
            return (
                f"its certificate is not for {host}",
                "Write a name that is in the certificate in primary, or have this one put into the certificate "
                "(subjectAltName)",
            )
        if code == _EXPIRED:
            return (
                "its certificate, or one above it, has expired",
                "Renew the primary's certificate; and check this machine's clock",
            )
        if code == _NOT_YET_VALID:
            return (
                "its certificate, or one above it, is not valid yet",
                "Check this machine's clock, and the dates of the certificate",
            )
        if code in (_SELF_SIGNED, _SELF_SIGNED_IN_CHAIN, _NO_ISSUER, _NO_ISSUER_OF_LEAF):
            known = "the system" if self.config.ca_file is None else f"ca_file, {self.config.ca_file},"
            if code == _SELF_SIGNED:
                return (
                    f"its certificate is self-signed, and {known} does not have it",
                    "Set ca_file to a copy of it, or server_certificate_sha256 to its fingerprint",
                )
            return (
                f"{known} does not know the CA of its certificate",
                "Set ca_file to the CA's certificate, and let the primary show those between both; or set "
                "server_certificate_sha256 to the fingerprint of its own",
            )
        return f"its certificate is not valid: {error.verify_message}", "Correct the primary's certificate, or ca_file"


def load_tls(config: LinkConfig, address: Address) -> LinkTls | None:
    """Read the files of a link, and return its TLS for a connection to `address`; None for an address without TLS.

    Args:
        config: The link's configuration.
        address: Address of the primary.

    Raises:
        TlsFailed: A file cannot be used.
    """
    if not address.has_tls:
        return None
    context, faults = _load(config)
    if faults:
        key, problem = faults[0]
        raise TlsFailed(
            address=str(address), problem=problem, hint=f"Correct the file, or {key} of the link; it is read again"
        )
    context.set_alpn_protocols(["http/1.1" if address.has_websocket else "mqtt"])
    shown = config.client_certificate_file
    return LinkTls(
        context=context,
        server_hostname=address.host.rstrip(".").partition("%")[0],
        config=config,
        client_expires_s=None if shown is None else file_expiry_s(shown),
    )


async def load_tls_in_thread(config: LinkConfig, address: Address) -> LinkTls | None:
    """Call `load_tls` in a thread, because the system trusts many certificates, and a disk may be slow.

    Raises:
        TlsFailed: A file cannot be used.
    """
    return await asyncio.to_thread(load_tls, config, address) if address.has_tls else None


def find_tls_faults(config: LinkConfig) -> list[tuple[str, str]]:
    """Return faults of the files of a link, each as config key and problem."""
    return _load(config)[1]


def peer_expires_s(connection: ssl.SSLObject) -> int | None:
    """Return when the primary's certificate expires, in Unix seconds; None when the connection is gone already."""
    try:
        certificate = connection.getpeercert(binary_form=True)
    except ValueError:  # an alert came right after the handshake
        return None
    return None if certificate is None else expiry_s(certificate)


def _load(config: LinkConfig) -> tuple[ssl.SSLContext, list[tuple[str, str]]]:
    faults: list[tuple[str, str]] = []
    if config.server_certificate_sha256:
        context: ssl.SSLContext = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)
        assert isinstance(context, _PinnedContext)
        context.pins = config.server_certificate_sha256
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[config.tls_min_version]
    if config.server_certificate_sha256 or config.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca_file is not None:
        faults += load_authorities(context, config.ca_file, name="ca_file")
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an intermediate, or the certificate itself, suffices
    else:
        context.load_default_certs()
    certificate, key = config.client_certificate_file, config.client_key_file
    if certificate is not None and key is not None:
        faults += load_chain(context, certificate, key, prefix="client_")
    return context, faults
