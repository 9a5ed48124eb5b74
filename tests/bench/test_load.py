"""The load generator by itself: what it counts, what it acknowledges, and that it notices what is too much."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.load import packet_bytes, publishes
from bench.readers import Audience, Readers
from bench.report import Ask, percentile, ratio

SIZE = packet_bytes(root="ours", payload_bytes=16, qos=1)


@contextmanager
def server() -> Iterator[tuple[int, list[socket.socket], threading.Event]]:
    """Accept one subscriber and answer its CONNECT and SUBSCRIBE: the port, its connection, and when it is there."""
    connections: list[socket.socket] = []
    subscribed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def accept() -> None:
            client, _ = listener.accept()
            client.settimeout(30)
            connections.append(client)
            client.recv(4096)
            client.sendall(b"\x20\x02\x00\x00")
            client.recv(4096)
            client.sendall(b"\x90\x03\x00\x01\x01")
            subscribed.set()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1], connections, subscribed
        finally:
            thread.join()
            for client in connections:
                client.close()


def received(client: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes."""
    data = b""
    while len(data) < size:
        data += client.recv(size - len(data))
    return data


@pytest.mark.parametrize("identifiers", [[1, 2, 3, 4], [65534, 65535, 1, 2], [7, 9, 8, 300]])
def test_every_packet_is_acknowledged_by_its_identifier(identifiers: list[int]) -> None:
    """In a run, over the end of the identifiers, and out of order; a packet may come in two reads."""
    template = publishes(1, root="ours", topics=1, payload_bytes=16, qos=1)
    at = SIZE - 16 - 2
    packets = [template[:at] + number.to_bytes(2, "big") + template[at + 2 :] for number in identifiers]
    data = b"".join(packets)
    with server() as (port, connections, subscribed), Readers(Audience(port, "ours", 1, SIZE, qos=1)) as readers:
        assert subscribed.wait(30)
        readers.expect(len(identifiers))
        connections[0].sendall(data[: SIZE * 2 + 5])
        answer = received(connections[0], 8)
        connections[0].sendall(data[SIZE * 2 + 5 :])
        answer += received(connections[0], 8)
        arrivals = readers.wait(deadline_s=30)

    assert answer == b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in identifiers)
    assert arrivals.delivered == 4


def test_a_message_too_many_is_an_error() -> None:
    """A duplicate cannot pass for a delivery."""
    data = publishes(3, root="ours", topics=1, payload_bytes=16, qos=1)
    with server() as (port, connections, subscribed), Readers(Audience(port, "ours", 1, SIZE)) as readers:
        assert subscribed.wait(30)
        connections[0].sendall(data)
        readers.expect(2)
        with pytest.raises(ConnectionError, match=f"{SIZE} bytes too many"):
            readers.wait(deadline_s=30)


def test_a_closed_connection_is_an_error() -> None:
    """A server that drops a subscriber does not leave the benchmark waiting."""
    with server() as (port, connections, subscribed), Readers(Audience(port, "ours", 1, SIZE)) as readers:
        assert subscribed.wait(30)
        connections[0].close()
        readers.expect(1)
        with pytest.raises(ConnectionError):
            readers.wait(deadline_s=30)


def test_subscribers_do_not_connect_one_after_another() -> None:
    """A member of a pool asks the others about each CONNECT: a thousand in a row would take most of a minute."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def accept_all_before_an_answer() -> None:
            for _ in range(3):
                client, _ = listener.accept()
                client.settimeout(30)
                connections.append(client)
                client.recv(4096)
            for client in connections:
                client.sendall(b"\x20\x02\x00\x00")
            for client in connections:
                client.recv(4096)
                client.sendall(b"\x90\x03\x00\x01\x01")

        thread = threading.Thread(target=accept_all_before_an_answer)
        thread.start()
        try:
            with Readers(Audience(listener.getsockname()[1], "ours", 3, SIZE, qos=1)):
                pass
        finally:
            thread.join()
            for client in connections:
                client.close()
    assert len(connections) == 3


def test_percentiles_are_values_that_occurred() -> None:
    """The smallest value that the share does not exceed."""
    values = [float(number) for number in range(100, 0, -1)]

    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([7.0], 0.99) == 7


def test_a_ratio_without_sense_is_missed() -> None:
    """Noise below zero gives no ratio, and what is unknown is not met."""
    assert ratio(-1.0, 2.0) is None
    assert ratio(1.0, 0.0) is None
    assert not Ask("p50", None, at_most=1.5).met
    assert Ask("p50", 1.5, at_most=1.5).met
    assert "MISSED" in str(Ask("speed", 39.9, at_least=40))
