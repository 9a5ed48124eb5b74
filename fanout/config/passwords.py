"""Secrets of links and of the HTTP interface, from files or environment variables, never from the configuration itself.

A secret is returned once to the code that connects, and appears in no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from fanout.config.settings import LinkConfig
from fanout.errors import ConfigError, ConfigFault, system_reason
from fanout.mqtt.data_representation import MAX_STRING_BYTES
from fanout.runtime.regular_files import open_regular

__all__ = ["PASSWORD_BYTES_MAX", "read_audit_password", "read_count_key", "read_password", "read_token"]

PASSWORD_BYTES_MAX = MAX_STRING_BYTES
"""Longest password that CONNECT carries (MQTT 5, section 3.1.3.6)."""
_KEY_BYTES_MAX = 4096
_TOKEN_CHARACTERS_MIN = 16
_TOKEN = re.compile(rf"[A-Za-z0-9\-._~+/]{{{_TOKEN_CHARACTERS_MIN},}}=*")  # RFC 6750, section 2.1


def read_password(link: LinkConfig, *, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """Return the password of a link; None for none.

    Args:
        link: The link; `password_file` is relative to the current directory.
        environment: Environment in which to look up `password_env`.

    Raises:
        ConfigError: When the file or the variable does not exist, cannot be read, is empty or too long.
    """
    if link.password_file is not None:
        source = str(link.password_file)
        password = _read_file(link.password_file, key="password_file", link=link)
    elif link.password_env is not None:
        source = "environment"
        value = environment.get(link.password_env)
        if value is None:
            problem = f'the variable {link.password_env}, with the password of the link "{link.name}", is not set'
            raise ConfigError(source, (ConfigFault("", problem, "Set it before the start, or correct password_env."),))
        password = value.encode(errors="surrogateescape")
    else:
        return None
    return _checked(password, source=source, link=link)


def read_audit_password(link: LinkConfig) -> bytes | None:
    """Return the password of a link's `audit_username`; None for none.

    Args:
        link: The link; `audit_password_file` is relative to the current directory.

    Raises:
        ConfigError: When the file does not exist, cannot be read, is empty or too long.
    """
    path = link.audit_password_file
    if path is None:
        return None
    return _checked(_read_file(path, key="audit_password_file", link=link), source=str(path), link=link)


def _read_file(path: Path, *, key: str, link: LinkConfig) -> bytes:
    try:
        with open_regular(path) as file:
            # One line end comes from the editor; the extra byte reveals a password that is too long.
            password = file.read(PASSWORD_BYTES_MAX + 3)
    except OSError as error:
        problem = f'cannot read the password of the link "{link.name}": {system_reason(error)}'
        hint = f"Correct {key}, or the file and its permissions."
        raise ConfigError(str(path), (ConfigFault("", problem, hint),)) from error
    return re.sub(rb"\r?\n\Z", b"", password)


def _checked(password: bytes, *, source: str, link: LinkConfig) -> bytes:
    if not 0 < len(password) <= PASSWORD_BYTES_MAX:
        problem = f'the password of the link "{link.name}" has {"no" if not password else "too many"} bytes'
        hint = f"A password has 1 to {PASSWORD_BYTES_MAX} bytes."
        raise ConfigError(source, (ConfigFault("", problem, hint),))
    return password


def read_count_key(path: Path) -> tuple[str, str]:
    """Return the key and the secret in the `count_key_file` of a link.

    Args:
        path: The file; relative to the current directory.

    Raises:
        ConfigError: When the file cannot be read, or has no `key:secret`.
    """
    try:
        with open_regular(path) as file:
            text = file.read(_KEY_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError as error:
        hint = "Correct count_key_file, or the file and its permissions."
        raise ConfigError(str(path), (ConfigFault("", f"cannot be read: {system_reason(error)}", hint),)) from error
    key, colon, secret = text.partition(":")
    if not (key and colon and secret):
        hint = "Write the API key, a colon and its secret into it."
        raise ConfigError(str(path), (ConfigFault("", "has no key:secret in it", hint),))
    return key, secret


def read_token(path: Path, *, key: str = "http.token_file") -> str:
    """Return the token in a file.

    Args:
        path: The file; relative to the current directory.
        key: Its key in the configuration.

    Raises:
        ConfigError: When the file cannot be read, or has no token of one line that is long enough.
    """
    try:
        with open_regular(path) as file:
            text = file.read(_KEY_BYTES_MAX).decode("utf-8", "replace").strip()
    except OSError as error:
        hint = f"Correct {key}, or the file and its permissions."
        raise ConfigError(str(path), (ConfigFault("", f"cannot be read: {system_reason(error)}", hint),)) from error
    if not _TOKEN.fullmatch(text):
        problem = f"has no token: {_TOKEN_CHARACTERS_MIN} characters or more of A-Z a-z 0-9 - . _ ~ + / ="
        hint = "Make one: openssl rand -base64 32"
        raise ConfigError(str(path), (ConfigFault("", problem, hint),))
    return text
