"""`fanout config`: print the JSON Schema of the configuration, and a configuration with every key."""

from __future__ import annotations

import sys

import typer

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show what a configuration may have.")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration.

    An editor with a language server for TOML completes keys in a file whose first line names it: #:schema ./FILE
    """
    from fanout.config.schema import schema_text

    sys.stdout.write(schema_text())


@app.command()
def example() -> None:
    """Print a configuration with every key, its default and unit."""
    from fanout.config.schema import example_text

    sys.stdout.write(example_text())
