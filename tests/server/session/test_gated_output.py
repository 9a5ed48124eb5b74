"""Tests of output that waits until its session is kept: its order, its bound, and its end."""

from __future__ import annotations

from fanout.server.routing.audiences import AudienceIndex
from fanout.server.session.gated_output import GatedOutput
from fanout.server.session.session import Session
from tests.server.core_pieces import Peer, make_session, options


class Marks:
    """Numbers marks, and keeps nothing."""

    def __init__(self) -> None:
        """Begin without a mark."""
        self.number = 0
        self.unwritten_number = 0
        self.waiting: list[GatedOutput] = []

    def mark(self, client_id: str) -> int:
        """Return the next number."""
        self.number += 1
        self.unwritten_number = self.number
        return self.number

    def unwritten(self, client_id: str) -> int:
        """Return the newest number that is not kept."""
        return self.unwritten_number

    def wait(self, output: GatedOutput) -> None:
        """Note an output."""
        self.waiting.append(output)

    def write(self, number: int) -> None:
        """Say that marks up to a number are kept."""
        if number >= self.unwritten_number:
            self.unwritten_number = 0
        self.waiting = [output for output in self.waiting if output.written(number)]


class Output:
    """A gated output, and what came through it."""

    def __init__(self, *, qos: int = 1, bytes_max: int = 100) -> None:
        """Connect a session that is subscribed at `qos`."""
        self.marks = Marks()
        self.session: Session = make_session()
        self.index = AudienceIndex()
        self.index.change(self.session, added={b"t": options(qos)})
        self.peer = Peer(self.session)
        self.written: list[bytes] = []
        self.rooms = 0
        self.gate = GatedOutput(
            self.marks, self.session, write=self.written.append, on_room=self._note_room, bytes_max=bytes_max
        )

    def _note_room(self) -> None:
        self.rooms += 1


def test_nothing_waits_while_everything_is_written() -> None:
    """At QoS 1 output goes straight on."""
    output = Output()
    output.gate.write(b"1")
    assert output.written == [b"1"]
    assert output.marks.waiting == []


def test_at_qos_2_each_write_is_marked() -> None:
    """Also when the subscription is gone: messages may be in flight still."""
    output = Output(qos=2)
    output.gate.write(b"1")
    assert (output.marks.number, output.written) == (1, [])
    output.marks.write(1)
    assert output.session.audience is not None
    output.index.change(output.session, added={}, removed=[b"t"])
    output.gate.write(b"2")
    assert (output.marks.number, output.written) == (2, [b"1"])


def test_too_much_that_waits_pauses_the_session_until_there_is_room() -> None:
    """So a disk that hangs costs bounded memory for each connection."""
    output = Output(bytes_max=10)
    output.marks.mark("c")
    output.gate.write(bytes(10))
    assert not is_full(output)
    output.gate.write(b"1")
    assert is_full(output)
    assert output.rooms == 0
    output.marks.write(1)
    assert not is_full(output)
    assert output.rooms == 1


def is_full(output: Output) -> bool:
    """Return whether the gate is full, of which a type checker does not conclude that it stays."""
    return output.gate.is_full


def test_the_end_comes_behind_what_waits_unless_the_connection_is_gone() -> None:
    """A DISCONNECT is not overtaken by the end of the connection."""
    output, ends = Output(), list[bytes]()
    output.gate.when_empty(lambda: ends.append(b"at once"))
    output.marks.mark("c")
    output.gate.write(b"last")
    output.gate.when_empty(lambda: ends.append(b"behind"))
    assert ends == [b"at once"]
    output.marks.write(1)
    assert output.written == [b"last"]
    assert ends == [b"at once", b"behind"]
    output.marks.mark("c")
    output.gate.write(b"never")
    output.gate.drop()
    output.marks.write(2)
    assert output.written == [b"last"]
