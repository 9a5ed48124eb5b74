"""The tree of commands, and the end of a failed command."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fanout import __version__
from fanout.cli import (
    audit,
    check,
    clients,
    config,
    drain,
    explain,
    log,
    passwd,
    pool,
    ready,
    reload,
    report,
    run,
    status,
)
from fanout.cli.arguments.usage import UsageError, reword
from fanout.cli.browse import events, top, topics, trace
from fanout.cli.output.exit_codes import exit_code_of
from fanout.cli.output.terminal import print_error
from fanout.cli.probing import init, probe
from fanout.errors import FanoutError
from fanout.installation import build

__all__ = ["app"]

_EPILOG = """\b
Exit codes:
  0    done, or the answer is yes
  1    the answer is no: not ready, not complete enough, damaged
  2    the command line or the configuration is wrong
  3    the node, or the primary, does not answer
  4    an optional part is not installed
  5    the command failed
  70   a defect of fanout
  130  stopped by Ctrl-C
"""


class _Commands(TyperGroup):
    def make_context(self, *arguments: Any, **options: Any) -> Any:  # of the options before the command
        try:
            return super().make_context(*arguments, **options)
        except UsageError as error:
            reword(error)
            raise

    def invoke(self, ctx: Any) -> Any:  # the type of a context differs between releases of typer
        try:
            return super().invoke(ctx)
        except UsageError as error:
            reword(error)
            raise
        except FanoutError as error:
            print_error(error)
            raise typer.Exit(exit_code_of(error)) from error


app = typer.Typer(
    cls=_Commands,
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the same in a pipe, and it does not cost the import of rich
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fanout {__version__} ({build()})")
        raise typer.Exit


@app.callback()
def fanout(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """A fan-out replicator for MQTT: secondaries mirror a primary, prove it, and serve thousands."""


init.register(app)
run.register(app)
check.register(app)
ready.register(app)
drain.register(app)
reload.register(app)
status.register(app)
audit.register(app)
explain.register(app)
topics.register(app)
events.register(app)
top.register(app)
trace.register(app)
passwd.register(app)
probe.register(app)
app.add_typer(config.app, name="config")
app.add_typer(clients.app, name="clients")
app.add_typer(pool.app, name="pool")
app.add_typer(report.app, name="report")
app.add_typer(log.app, name="log")
