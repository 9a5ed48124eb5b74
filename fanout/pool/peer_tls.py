"""TLS between members: each shows a certificate, and each accepts only those of the pool's own CA."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from fanout.certificates import load_authorities, load_chain
from fanout.config import PoolConfig
from fanout.errors import ListenError

__all__ = ["PeerTls", "find_tls_faults", "load_peer_tls"]


@dataclass(frozen=True, slots=True)
class PeerTls:
    """The two sides of TLS between members."""

    listening: ssl.SSLContext
    """Context of the listener, which wants a certificate of whoever asks."""
    asking: ssl.SSLContext
    """Context of the client, which checks the certificate and the name of who answers."""


def load_peer_tls(config: PoolConfig) -> PeerTls | None:
    """Read the files of `[pool]`; return None when it has none.

    Raises:
        ListenError: A file cannot be used.
    """
    if not config.has_tls:
        return None
    tls, faults = _load(config)
    if faults:
        hint = "Correct the files or their paths in [pool]."
        raise ListenError(f"no TLS for {config.listen.authority}: {faults[0][1]}", hint=hint)
    return tls


def find_tls_faults(config: PoolConfig) -> list[tuple[str, str]]:
    """Return the faults in the files of `[pool]`, as pairs of key and problem."""
    return _load(config)[1] if config.has_tls else []


def _load(config: PoolConfig) -> tuple[PeerTls, list[tuple[str, str]]]:
    assert config.certificate_file is not None, "the configuration was validated"
    assert config.key_file is not None, "the configuration was validated"
    assert config.client_ca_file is not None, "the configuration was validated"
    faults: list[tuple[str, str]] = []
    listening, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (listening, asking):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        faults = load_chain(context, config.certificate_file, config.key_file)
        faults += load_authorities(context, config.client_ca_file, name="client_ca_file")
    listening.verify_mode = ssl.CERT_REQUIRED
    return PeerTls(listening, asking), faults
