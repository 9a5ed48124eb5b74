"""TLS context of one listener: its certificate and key, its authorities for client certificates, and their reload."""

from __future__ import annotations

import ssl

from fanout.certificates import load_authorities, load_chain
from fanout.config import ListenerConfig
from fanout.errors import ListenError

__all__ = ["ListenerTls", "find_tls_faults"]

_ALPN = {"wss": "http/1.1", "amqps": "amqp"}


class ListenerTls:
    """TLS context of one listener, with reload.

    Attributes:
        context: Context for handshakes; it stays the same object, and always uses the newest certificate.
    """

    def __init__(self, config: ListenerConfig, *, key: str = "[[server.listener]]") -> None:
        """Read the files.

        Args:
            config: A listener with certificate and key.
            key: Its section in the configuration.

        Raises:
            ListenError: A file cannot be used.
        """
        self._config = config
        self._key = key
        self._newest = self.context = _read(config, key=key)
        # A listening socket keeps its context. OpenSSL calls this before it sends a certificate, even when the client
        # sends no server name; client certificates are then verified by the newest context too.
        self.context.sni_callback = self._switch

    def reload(self) -> None:
        """Read the files again, for new handshakes.

        Raises:
            ListenError: A file cannot be used; the former files stay in force.
        """
        self._newest = _read(self._config, key=self._key)

    def _switch(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest


def find_tls_faults(config: ListenerConfig) -> list[tuple[str, str]]:
    """Return the faults in the files of a listener with TLS, as pairs of config key and problem."""
    return _load(config)[1]


def _read(config: ListenerConfig, *, key: str) -> ssl.SSLContext:
    context, faults = _load(config)
    if faults:
        raise ListenError(
            f"no TLS for {config.address}: {faults[0][1]}",
            hint=f"Correct the files or their paths in {key}.",
        )
    return context


def _load(config: ListenerConfig) -> tuple[ssl.SSLContext, list[tuple[str, str]]]:
    certificate, key, client_ca = config.certificate_file, config.key_file, config.client_ca_file
    assert certificate is not None, "the configuration was validated"
    assert key is not None, "the configuration was validated"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([_ALPN.get(config.address.scheme, "mqtt")])
    faults = load_chain(context, certificate, key)
    if client_ca is not None:
        faults += load_authorities(context, client_ca, name="client_ca_file")
        context.verify_mode = ssl.CERT_REQUIRED if config.require_client_certificate else ssl.CERT_OPTIONAL
        # A resumed TLS session would not be verified by a client_ca_file that was read since.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context, faults
