"""Output: plain and stable in a pipe, coloured on a terminal, errors apart."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fanout.cli.output.terminal import columns, facts, print_error, print_json, show, show_to_paste, state_text
from fanout.errors import ConfigError, ConfigFault, ListenError, NodeUnreachable


def on_terminal(width: int = 80) -> Console:
    """Return a console that believes it is a terminal."""
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system="standard", highlight=False)


def test_columns_in_a_pipe_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """A table in a pipe has no colour, no lines, no trailing blanks, and does not wrap."""
    table = columns("link", "topics", "filter", right=("topics",))
    table.add_row("plant", "200,000", "plant/" + "x" * 200)
    table.add_row("office", "321", "o/#")
    show(table)
    assert capsys.readouterr().out == (
        f"LINK     TOPICS  FILTER\nplant   200,000  plant/{'x' * 200}\noffice      321  o/#\n"
    )


def test_columns_on_a_terminal_fold(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal a long value is folded inside its column, nothing is cut."""
    console = on_terminal(40)
    table = columns("link", "filter")
    table.add_row("plant", "plant/" + "x" * 60)
    show(table, console=console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert shown.count("x") == 60
    assert "\x1b[1mLINK" in shown
    assert capsys.readouterr().out == ""


def test_lines_to_paste_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on a terminal, which wraps by itself, nor at the width that a pipe has."""
    text = f"topic read {'plant hall ' * 200}[b]"
    for is_terminal in (True, False):
        file = io.StringIO()
        monkeypatch.setattr(file, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr("sys.stdout", file)
        show_to_paste(f"# one\n{text}\n")
        assert file.getvalue() == f"# one\n{text}\n"


def test_facts_keep_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that looks like markup is shown as it is."""
    show(facts(("topic", "a/[bold]b/:smile:"), ("", "second line")))
    assert capsys.readouterr().out == "topic  a/[bold]b/:smile:\n       second line\n"


def test_print_json_is_only_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Characters beyond ASCII stay readable; one document, one newline at the end."""
    print_json({"link": "küche", "lag_seconds": None})
    assert capsys.readouterr().out == '{\n  "link": "küche",\n  "lag_seconds": null\n}\n'


def test_print_error_has_the_hint_below(capsys: pytest.CaptureFixture[str]) -> None:
    """An error is one line, its hint another, on standard error."""
    print_error(ListenError("cannot listen on [::1]:80: Permission denied", hint="Choose a higher port"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "error: cannot listen on [::1]:80: Permission denied\n  Choose a higher port\n"


def test_print_error_without_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """No hint, no empty line."""
    print_error(NodeUnreachable("cannot connect"))
    assert capsys.readouterr().err == "error: cannot connect\n"


def test_print_error_lists_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """All faults of a configuration are shown, with key, problem and hint."""
    faults = (
        ConfigFault("link[0].password", "a password does not belong in the file", "Use password_file."),
        ConfigFault("", "the file is not UTF-8", "Save it as UTF-8."),
    )
    print_error(ConfigError("node.toml", faults))
    assert capsys.readouterr().err == (
        "error: node.toml: 2 faults\n"
        "  link[0].password: a password does not belong in the file\n"
        "    Use password_file.\n"
        "  the file is not UTF-8\n"
        "    Save it as UTF-8.\n"
    )


def test_print_error_counts_one_fault(capsys: pytest.CaptureFixture[str]) -> None:
    """One fault is not "1 faults"."""
    print_error(ConfigError("node.toml", (ConfigFault("node.id", "is missing", "Add it."),)))
    assert capsys.readouterr().err.startswith("error: node.toml: 1 fault\n")


@pytest.mark.parametrize(
    ("state", "colour"), [("live", "green"), ("down", "red"), ("stalled", "red"), ("snapshot", "yellow")]
)
def test_state_text(state: str, colour: str) -> None:
    """The colour says how far a link is from serving; the word says the same."""
    text = state_text(state)
    assert (text.plain, text.style) == (state, colour)
