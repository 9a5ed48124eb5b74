"""The two sides of a connection that goes through another process."""

from __future__ import annotations

from fanout.workers.relay import Relay


def test_all_relays_read_into_one_buffer() -> None:
    """A node with many clients on TLS would have half a megabyte for each otherwise."""
    near, far = Relay(), Relay()
    assert near.get_buffer(-1) is far.get_buffer(-1)


def test_what_was_read_outlives_the_next_read_of_another() -> None:
    """It is copied before it is passed on."""

    class End(Relay):
        def __init__(self) -> None:
            super().__init__()
            self.written: list[bytes] = []

        def write(self, data: bytes) -> None:
            self.written.append(data)

    sides = [(Relay(), End()) for _ in range(2)]
    for (near, far), data in zip(sides, (b"first", b"second"), strict=True):
        near.other = far
        near.get_buffer(-1)[: len(data)] = data
        near.buffer_updated(len(data))
    assert [far.written for _, far in sides] == [[b"first"], [b"second"]]
