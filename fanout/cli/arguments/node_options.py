"""Arguments of the commands that ask a running node, or run several."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = [
    "DEFAULT_URL",
    "AskingCommand",
    "JsonOption",
    "MembersOption",
    "ShowByDefault",
    "TokenOption",
    "UrlOption",
    "UrlsArgument",
    "UrlsOption",
    "checked_url",
    "node_url",
]

DEFAULT_URL: Final = "http://127.0.0.1:8080"
_PORT_MAX: Final = 65_535
_ADDRESS: Final = re.compile(r"https?://.*|([\w.-]+|\[[\da-fA-F:.]+\]):\d{1,5}")
"""Form of a node's address in place of another argument, which no name of a link has."""


def node_url(text: str) -> str:
    """Return the base URL of a node from the text of a user; a missing `http://` is added.

    Raises:
        ValueError: The text is not an HTTP address, or has a user in it, whose password is not shown.
    """
    import httpx

    if "@" in text:
        raise ValueError('an address has no user and no password ("@") in it; a node takes a token: --token-file')
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL:
        url = httpx.URL()
    # A port alone would be parsed as an address: 8080 is 0.0.31.144.
    if url.scheme not in {"http", "https"} or not url.host or url.host.isdigit() or (url.port or 0) > _PORT_MAX:
        raise ValueError(f"{text!r} is not an HTTP address such as http://127.0.0.1:8080")
    return str(url).rstrip("/")


def checked_url(text: str) -> str:
    """Return the base URL for the text of a user; a callback of `UrlOption`.

    Raises:
        typer.BadParameter: It is not an HTTP address.
    """
    try:
        return node_url(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _checked_urls(texts: list[str] | None) -> list[str]:
    return [checked_url(text) for text in texts or ()]


class AskingCommand(TyperCommand):
    """Command with `--url` that takes the URL as its last argument too, also in place of an argument left out.

    Such an argument is an URL with its scheme, or HOST:PORT. A topic of this form needs `--url` beside it.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:  # the type of a context differs between releases of typer
        """Take the argument that is left as the URL."""
        ctx.allow_extra_args = True
        is_named = any(one.partition("=")[0] == "--url" for one in args)
        rest = super().parse_args(ctx, args)
        if rest:
            if len(rest) > 1 or is_named:
                ctx.fail(f"Got unexpected extra argument ({rest[-1]})")
            ctx.params["url"] = checked_url(rest[0])
            ctx.args = []
            return []
        for one in () if is_named else self.params:
            given = ctx.params.get(one.name)
            is_optional = one.param_type_name == "argument" and not one.required
            if is_optional and isinstance(given, str) and _ADDRESS.fullmatch(given):
                ctx.params |= {"url": checked_url(given), one.name: one.get_default(ctx)}
        return []

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Name the URL after the arguments."""
        return [*super().collect_usage_pieces(ctx), "[URL]"]


class ShowByDefault(TyperGroup):
    """Group whose command `show` may be left out: `fanout pool [URL]` is `fanout pool show [URL]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Name `show` where no command is named."""
        if not args or args[0] not in {*self.commands, "-h", "--help"}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


UrlOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="FANOUT_URL",
        callback=checked_url,
        help="The node's HTTP address (http.listen).",
    ),
]
UrlsArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="URL...",
        envvar="FANOUT_URL",
        callback=_checked_urls,
        default_factory=lambda: [DEFAULT_URL],
        show_default=DEFAULT_URL,
        help="HTTP addresses of nodes (http.listen).",
    ),
]
UrlsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--url", metavar="URL", callback=_checked_urls, help="Such an address, in place of the arguments."),
]
TokenOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", envvar="FANOUT_TOKEN_FILE", help="The node's http.token_file, or a copy of it."
    ),
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the node's document as JSON and nothing else.")
]
MembersOption: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, max=16, metavar="N", help="N members of a pool on this machine, of one configuration."),
]
