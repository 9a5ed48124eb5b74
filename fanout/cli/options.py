"""Common arguments of commands."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

__all__ = ["DEFAULT_URL", "JsonOption", "UrlArgument", "UrlOption", "checked_url"]

DEFAULT_URL: Final = "http://127.0.0.1:8080"


def checked_url(text: str) -> str:
    """Return the base URL for the text of a user; a callback of `UrlArgument`.

    Raises:
        typer.BadParameter: It is not an HTTP address.
    """
    from fanout.cli.client import node_url

    try:
        return node_url(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


UrlArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        envvar="FANOUT_URL",
        callback=checked_url,
        help="The node's HTTP address (http.listen).",
    ),
]
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
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print the node's document as JSON and nothing else.")
]
