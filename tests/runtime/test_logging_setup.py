"""Log lines: two formats, one place, repeats thinned out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from fanout.escaping import printable
from fanout.runtime.logging_setup import RepeatLimit, configure_logging


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """Put the logging set-up back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("uvicorn", "httpx")}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, former in levels.items():
        logging.getLogger(name).setLevel(former)
    structlog.reset_defaults()


def configured(*, level: int = logging.INFO, as_json: bool = True) -> io.StringIO:
    """Configure logging into a buffer."""
    stream = io.StringIO()
    configure_logging(level=level, as_json=as_json, stream=stream)
    return stream


def json_lines(stream: io.StringIO) -> list[dict[str, object]]:
    """Return the lines of a JSON log."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_line_has_fixed_keys_first_then_fields() -> None:
    """One object a line: time, level, logger, event, and the fields in the order given."""
    stream = configured()
    structlog.get_logger("fanout.link").info("link entered state", link="plant", state="live", topics=3)
    (line,) = json_lines(stream)
    assert list(line) == ["time", "level", "logger", "event", "link", "state", "topics"]
    assert (line["level"], line["logger"], line["event"]) == ("info", "fanout.link", "link entered state")
    assert str(line["time"]).endswith("Z")


def test_text_line_is_one_line_without_colour_in_a_pipe() -> None:
    """A person reads time, level, event and fields; no escape sequences outside a terminal."""
    stream = configured(as_json=False)
    structlog.get_logger("fanout.link").info("link entered state", link="plant", state="live")
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "[info     ] link entered state" in text
    assert text.endswith("link=plant state=live\n")


def test_text_line_has_several_values_as_words() -> None:
    """A person reads them, so they are not written as Python does."""
    stream = configured(as_json=False)
    structlog.get_logger().info("node started", listeners=["mqtt://[::1]:1883", "ws://h"], members=("e\x1b",))
    assert stream.getvalue().endswith("listeners='mqtt://[::1]:1883, ws://h' members=e\\x1b\n")


def test_text_line_has_colour_on_a_terminal() -> None:
    """On a terminal the level has a colour."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    configure_logging(level=logging.INFO, as_json=False, stream=stream)
    structlog.get_logger().warning("message dropped")
    assert "\x1b[" in stream.getvalue()


def test_level_is_a_threshold_for_everyone() -> None:
    """Lines below the level are dropped, those of other libraries too."""
    stream = configured(level=logging.WARNING)
    structlog.get_logger("a").info("too low")
    logging.getLogger("b").info("too low")
    structlog.get_logger("a").warning("shown")
    logging.getLogger("b").warning("shown %d", 2)
    assert [line["event"] for line in json_lines(stream)] == ["shown", "shown 2"]


def test_debug_shows_every_line() -> None:
    """DEBUG is asked for and comes whole."""
    stream = configured(level=logging.DEBUG)
    for number in range(20):
        structlog.get_logger().debug("packet", number=number)
    assert len(json_lines(stream)) == 20


def test_uvicorn_is_quiet_below_error() -> None:
    """The HTTP server's chatter at start and stop is left out, and a line for each bad request; its errors are not."""
    stream = configured()
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").error("Exception in ASGI application")
    assert [line["event"] for line in json_lines(stream)] == ["Exception in ASGI application"]


def test_requests_of_the_node_are_not_logged() -> None:
    """Members of a pool are asked four times a second."""
    stream = configured()
    logging.getLogger("httpx").info("HTTP Request: GET http://127.0.0.1:9202/pool/member")
    logging.getLogger("httpx").warning("something is wrong")
    assert [line["event"] for line in json_lines(stream)] == ["something is wrong"]


def test_exception_is_part_of_its_line() -> None:
    """A traceback is a field of the JSON line, and follows the text line."""
    for as_json in (True, False):
        stream = configured(as_json=as_json)
        try:
            raise ValueError("broken")
        except ValueError:
            structlog.get_logger().exception("it failed")
        assert "ValueError: broken" in stream.getvalue()
        if as_json:
            assert "Traceback" in str(json_lines(stream)[0]["exception"])


HOSTILE = "x\x1b[2J\r\n2025-11-21 [error    ] forged\t\x7f\x9b31m\u202e\u2028\u3164\ud800"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_field_cannot_be_more_than_a_field(as_json: bool) -> None:
    """What a stranger wrote neither ends its line nor moves a cursor, in messages of other libraries too."""
    stream = configured(as_json=as_json)
    structlog.get_logger().info("x", client_id=HOSTILE, topics=[HOSTILE], error=ValueError(HOSTILE))
    structlog.get_logger().info("y", topic=HOSTILE.encode("utf-8", "surrogatepass"))
    logging.getLogger("other").warning("it said %s", HOSTILE)
    text = stream.getvalue()
    assert len(text.splitlines()) == text.count("\n") == 3
    assert [line for line in text.split("\n") if printable(line) != line] == []
    if as_json:
        assert json_lines(stream)[0]["client_id"] == HOSTILE


@pytest.mark.parametrize("as_json", [False, True])
def test_a_traceback_cannot_be_a_line(as_json: bool) -> None:
    """It has the message of the exception, which may quote a stranger; what follows the first line is indented."""
    stream = configured(as_json=as_json)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        structlog.get_logger().exception("it failed", stack_info=True)
        logging.getLogger("other").exception("it failed too", stack_info=True)
    text = stream.getvalue()
    assert [line for line in text.split("\n") if printable(line) != line] == []
    assert "Traceback" in text
    assert "[error    ] forged" in text
    assert sum(not line.startswith(" ") for line in text.splitlines() if line) == 2


def test_a_field_cannot_be_two_fields() -> None:
    """A value that could be read as a name and a value is quoted."""
    stream = configured(as_json=False)
    structlog.get_logger().info("x", client_id="a user=root", state="live")
    assert stream.getvalue().endswith("client_id='a user=root' state=live\n")


def test_bytes_are_shown_as_text() -> None:
    """A topic on the data path is bytes; a log line shows it as text, whatever is in it."""
    stream = configured()
    structlog.get_logger().info("x", topic=b"plant/\xff", other=frozenset({1}))
    (line,) = json_lines(stream)
    assert (line["topic"], line["other"]) == ("plant/\ufffd", "frozenset({1})")


def test_configuring_again_replaces() -> None:
    """The newest set-up holds, for a logger made before it too."""
    first = configured()
    logger = structlog.get_logger("early")
    logger.info("one")
    second = configured()
    logger.info("two")
    assert [line["event"] for line in json_lines(first)] == ["one"]
    assert [line["event"] for line in json_lines(second)] == ["two"]


class ManualClock:
    """Time set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def passed(limit: RepeatLimit, *, level: str = "warning", **event: object) -> dict[str, object] | None:
    """Return the line that passes, or None when it is dropped."""
    try:
        return dict(limit(None, level, {"event": "message dropped", **event}))
    except structlog.DropEvent:
        return None


def test_repeats_are_dropped_and_counted() -> None:
    """Beyond the burst lines are dropped; the first one of the next period says how many."""
    clock = ManualClock()
    limit = RepeatLimit(burst=2, period_s=10, clock=clock)
    assert [passed(limit) is not None for _ in range(5)] == [True, True, False, False, False]
    clock.now = 10
    assert passed(limit) == {"event": "message dropped", "suppressed": 3}
    clock.now = 20
    assert passed(limit) == {"event": "message dropped"}


def test_repeats_are_told_apart_by_link_reason_and_level() -> None:
    """A flood on one link does not hide another link's trouble."""
    limit = RepeatLimit(burst=1, period_s=10, clock=ManualClock())
    assert passed(limit, link="plant") is not None
    assert passed(limit, link="plant") is None
    assert passed(limit, link="office") is not None
    assert passed(limit, link="plant", reason="queue_full") is not None
    assert passed(limit, link="plant", level="error") is not None


def test_life_of_the_node_is_told_whole() -> None:
    """INFO tells what happened: a line that differs from the one before is no repeat."""
    limit = RepeatLimit(burst=1, period_s=10, clock=ManualClock())
    assert all(passed(limit, level="info", reason=str(number)) is not None for number in range(50))


def test_a_flood_is_limited_at_every_level() -> None:
    """Reasons that are different each time, as a peer can write them, do not let every line pass."""
    for level in ("info", "warning", "error"):
        clock = ManualClock()
        limit = RepeatLimit(burst=5, burst_total=50, period_s=10, clock=clock)
        lines = [passed(limit, level=level, link="plant", reason=str(number)) for number in range(20_000)]
        assert sum(line is not None for line in lines) == 50
        assert passed(limit, level=level, link="office") is not None
        clock.now = 10
        line = passed(limit, level=level, link="plant", reason="new")
        assert line is not None
        assert line["suppressed"] == 19_950
    assert all(passed(limit, level="debug", link="plant") is not None for _ in range(100))


def test_lines_of_other_libraries_are_limited_too() -> None:
    """A fault in each answer is not a traceback in each answer; the next line says how many there were."""
    stream = configured(level=logging.DEBUG)
    for number in range(1_000):
        logging.getLogger("uvicorn.error").error("Exception in answer %d", number)
        logging.getLogger("other").info("told %d", number)
        logging.getLogger("other").debug("detail")
    events = [line["event"] for line in json_lines(stream)]
    assert [event for event in events if "Exception" in str(event)] == [f"Exception in answer {n}" for n in range(5)]
    assert [event for event in events if "told" in str(event)] == [f"told {n}" for n in range(50)]
    assert events.count("detail") == 1_000


def test_what_was_left_out_of_other_libraries_is_told() -> None:
    """As `suppressed` is for own lines."""
    clock = ManualClock()
    limit = RepeatLimit(burst=2, period_s=10, clock=clock)

    def passes() -> str | None:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed %s\n", ("a",), None)
        return record.getMessage() if limit.passes(record) else None

    assert [passes() for _ in range(5)] == ["failed a\n", "failed a\n", None, None, None]
    clock.now = 10
    assert passes() == "failed a (3 such lines were left out)"


def test_a_long_value_is_cut() -> None:
    """A line stays a line, whatever a peer wrote; the cut can be seen."""
    stream = configured()
    structlog.get_logger().info("told", reason="x" * 15_000_000, topic=b"y" * 5_000, short="z" * 2_048)
    (line,) = json_lines(stream)
    assert line["reason"] == "x" * 2_047 + "…"
    assert line["topic"] == "y" * 2_047 + "…"
    assert line["short"] == "z" * 2_048


def test_memory_of_the_limit_is_bounded() -> None:
    """Warnings that differ in each line are remembered up to a bound; the oldest is forgotten first."""
    limit = RepeatLimit(burst=1, period_s=10, clock=ManualClock())
    assert passed(limit, link=0) is not None
    for number in range(1, 513):
        passed(limit, link=number)
    assert passed(limit, link=0) is not None
    assert passed(limit, link=512) is None
