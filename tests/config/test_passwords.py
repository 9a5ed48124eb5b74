"""Tests of `fanout.config.passwords`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanout.config.address import Address
from fanout.config.passwords import PASSWORD_BYTES_MAX, read_count_key, read_password, read_token
from fanout.config.settings import LinkConfig
from fanout.errors import ConfigError


def link(*, file: Path | None = None, variable: str | None = None) -> LinkConfig:
    """Return a link whose password comes from `file` or `variable`."""
    return LinkConfig(
        name="plant",
        primaries=(Address("mqtt", "127.0.0.1", 1883),),
        username="edge",
        password_file=file,
        password_env=variable,
    )


def test_a_link_without_a_source_has_no_password() -> None:
    """None means that CONNECT carries no password."""
    assert read_password(link()) is None


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"secret", b"secret"),
        (b"secret\n", b"secret"),
        (b"secret\r\n", b"secret"),
        (b"secret\n\n", b"secret\n"),
        (b"secret\r", b"secret\r"),
        (b" \xff\x00 \n", b" \xff\x00 "),
        (b"x" * PASSWORD_BYTES_MAX + b"\r\n", b"x" * PASSWORD_BYTES_MAX),
    ],
)
def test_a_file_gives_its_content_without_the_last_line_end(tmp_path: Path, content: bytes, password: bytes) -> None:
    """An editor's line end is not part of the password; anything else is."""
    file = tmp_path / "password"
    file.write_bytes(content)
    assert read_password(link(file=file)) == password


def test_a_relative_file_is_relative_to_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As every path in the configuration."""
    (tmp_path / "password").write_text("secret")
    monkeypatch.chdir(tmp_path)
    assert read_password(link(file=Path("password"))) == b"secret"


def test_a_variable_gives_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's environment is used unless another is given."""
    monkeypatch.setenv("PLANT_PASSWORD", "from the process")
    assert read_password(link(variable="PLANT_PASSWORD")) == b"from the process"
    assert read_password(link(variable="PLANT_PASSWORD"), environment={"PLANT_PASSWORD": "ü"}) == "ü".encode()
    assert read_password(link(variable="A"), environment={"A": "\udcff"}) == b"\xff"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "no such file or directory"),
        (lambda path: path.mkdir(), "it is a directory, and not a regular file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make: object, reason: str) -> None:
    """The error names the file, the link and the system's reason."""
    file = tmp_path / "password"
    assert callable(make)
    make(file)
    with pytest.raises(ConfigError) as caught:
        read_password(link(file=file))
    assert str(caught.value) == (
        f'{file}: cannot read the password of the link "plant": {reason}. '
        "Correct password_file, or the file and its permissions."
    )


def test_a_variable_that_is_not_set_is_named() -> None:
    """The error names the variable and the link."""
    with pytest.raises(ConfigError) as caught:
        read_password(link(variable="PLANT_PASSWORD"), environment={})
    assert str(caught.value) == (
        'environment: the variable PLANT_PASSWORD, with the password of the link "plant", is not set. '
        "Set it before the start, or correct password_env."
    )


@pytest.mark.parametrize(("content", "words"), [(b"", "no"), (b"\n", "no"), (b"x" * 65_536, "too many")])
def test_a_password_that_cannot_be_sent_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """An empty or too long password is refused, and never shown."""
    file = tmp_path / "password"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_password(link(file=file))
    assert str(caught.value) == (
        f'{file}: the password of the link "plant" has {words} bytes. A password has 1 to 65535 bytes.'
    )


def test_a_count_key_is_a_key_and_a_secret(tmp_path: Path) -> None:
    """On one line; the secret may have colons."""
    file = tmp_path / "key"
    file.write_text("key:secret:more\n")
    assert read_count_key(file) == ("key", "secret:more")


@pytest.mark.parametrize("content", ["", "geheim\n", "geheim:", ":geheim"])
def test_a_count_key_without_both_is_refused(tmp_path: Path, content: str) -> None:
    """What is in the file is not shown."""
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(ConfigError, match="has no key:secret in it") as raised:
        read_count_key(file)
    assert "geheim" not in str(raised.value)


def test_a_count_key_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """With the path."""
    with pytest.raises(ConfigError, match=r"none: cannot be read: no such file or directory\. Correct count_key_file"):
        read_count_key(tmp_path / "none")


@pytest.mark.parametrize("text", ["a-token-of-24-characters\n", "QUJDREVGR0hJSktMTU5PUA==", "  ABCDEFGHIJKLMNOP  "])
def test_token_of_the_http_interface(tmp_path: Path, text: str) -> None:
    """One line, with or without its end."""
    file = tmp_path / "token"
    file.write_text(text)
    assert read_token(file) == text.strip()


@pytest.mark.parametrize(
    "text", ["", "fifteen-letters", "two tokens of one line", "a-token-of-24-chäracters", "x" * 9000]
)
def test_file_without_a_token(tmp_path: Path, text: str) -> None:
    """The error says what a token is, and does not repeat the text; a file without end is not read to its end."""
    file = tmp_path / "token"
    file.write_text(text if len(text) < 9000 else f"{text} x")
    if len(text) == 9000:
        assert len(read_token(file)) == 4096
        return
    with pytest.raises(ConfigError) as caught:
        read_token(file)
    assert "has no token: 16 characters or more" in str(caught.value)
    assert "openssl rand -base64 32" in str(caught.value)


def test_token_file_that_is_not_there(tmp_path: Path) -> None:
    """The key is named."""
    with pytest.raises(ConfigError, match=r"cannot be read: no such file or directory. Correct http.token_file"):
        read_token(tmp_path / "token")
