"""Certificates for tests, made with the `openssl` command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

__all__ = ["Authority", "client_context"]


class Authority:
    """A certificate authority of one test.

    Attributes:
        certificate: Path of its own certificate.
    """

    def __init__(self, directory: Path, *, name: str = "ca", names: str = "DNS:ca.test") -> None:
        self._directory = directory
        self._key = directory / f"{name}.key"
        self.certificate = directory / f"{name}.pem"
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "90",
            "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}",
            "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def issue(
        self,
        name: str,
        *,
        subject: str = "",
        names: str = "IP:127.0.0.1,DNS:localhost",
        valid: tuple[timedelta, timedelta] | None = None,
    ) -> tuple[Path, Path]:
        """Make a certificate for this machine, in files called `name`.

        Args:
            name: Of the files, and the Common Name unless `subject` is given.
            subject: As OpenSSL writes it, such as `/O=plant/CN=sensor`.
            names: The names and addresses that it is for.
            valid: From when to when, counted from now; None for 90 days from now.

        Returns:
            The paths of certificate and key; existing files are replaced.
        """
        certificate, key, request, extensions = (
            self._directory / f"{name}.{suffix}" for suffix in ("pem", "key", "csr", "ext")
        )
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-subj", subject or f"/CN={name}", "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        if valid is not None:
            self._sign(request, certificate, extensions, valid)
            return certificate, key
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key),
            "-CAcreateserial", "-days", "90", "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key

    def _sign(self, request: Path, certificate: Path, extensions: Path, valid: tuple[timedelta, timedelta]) -> None:
        """Sign a request with dates, which needs the command for whole authorities."""
        now = datetime.now(UTC)
        start, end = (f"{now + moment:%Y%m%d%H%M%SZ}" for moment in valid)
        (self._directory / "index.txt").write_text("")
        config = self._directory / "ca.conf"
        config.write_text(
            f"[ca]\ndefault_ca=own\n[own]\nprivate_key={self._key}\ncertificate={self.certificate}\n"
            f"new_certs_dir={self._directory}\ndatabase={self._directory}/index.txt\nrand_serial=yes\n"
            "default_md=sha256\npolicy=any\nunique_subject=no\n"
            "[any]\ncommonName=supplied\n"
        )
        _openssl(
            "ca", "-config", str(config), "-batch", "-notext", "-startdate", start, "-enddate", end,
            "-extfile", str(extensions), "-in", str(request), "-out", str(certificate),
        )  # fmt: skip


def client_context(authority: Authority, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """Make the context of a client that trusts `authority`, and shows certificate and key if given."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # these certificates have no key identifiers
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    assert program is not None, "the tests of TLS need the command openssl"
    subprocess.run([program, *arguments], check=True, capture_output=True)
