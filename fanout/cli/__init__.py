"""The `fanout` command: starts nodes, queries running nodes, makes reports.

Importing this package loads next to nothing; each command imports what it needs when it runs, so that
`fanout --help` and a probe every second stay cheap, and so that pyspark is loaded by `fanout report` alone.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its exit code."""
    import codecs
    import io
    import os
    import sys
    import traceback

    from fanout.cli.app import app
    from fanout.cli.output.exit_codes import ExitCode
    from fanout.escaping import escape_unencodable, printable_lines

    # Pydantic would read the metadata of every installed package in search of plugins: a twentieth of a node's start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    codecs.register_error("fanout-escape", escape_unencodable)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="fanout-escape")  # topics may have characters that the locale lacks
    try:
        app(prog_name="fanout")
    except Exception:
        # Errors that an operator can act on were printed before; this is a defect, with an exit code of its own.
        sys.stderr.write(printable_lines(traceback.format_exc()))
        sys.exit(ExitCode.BUG)
