"""The balancer of tests with real clients forwards every byte, and closes every socket."""

import gc
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from support.door_fleet import balancing

ANSWER = b"answer" * 500_000
REPETITIONS = 20


@contextmanager
def server(answer: bytes) -> Iterator[int]:
    """Accept connections, and answer the first bytes of each; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as accepted:

        def serve(connection: socket.socket) -> None:
            with suppress(OSError):  # the balancer may be stopped before it has read all of it
                if connection.recv(100):
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)

        def accept() -> None:
            while True:
                try:
                    connection = accepted.enter_context(listening.accept()[0])
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def leave_idle(client: socket.socket) -> None:
    """Connect and send nothing."""


def leave_half_read(client: socket.socket) -> None:
    """Read the beginning of an answer, so that the rest waits in the balancer."""
    client.sendall(b"request")
    assert client.recv(1)


def leave_closed(client: socket.socket) -> None:
    """Close the connection just before the balancer stops."""
    client.sendall(b"request")
    client.close()


@pytest.mark.daily(1)
@pytest.mark.parametrize("leave", [leave_idle, leave_half_read, leave_closed])
def test_every_socket_is_closed_when_the_balancer_stops(
    leave: Callable[[socket.socket], None],
) -> None:
    """An open one is a `ResourceWarning` in whichever test runs when it is collected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(REPETITIONS):
            with server(ANSWER) as port, ExitStack() as clients, balancing([port]) as balancer:
                for _ in range(3):
                    leave(clients.enter_context(connected(balancer.port)))
        gc.collect()
    assert [str(one.message) for one in caught] == []


def test_an_answer_arrives_whole_although_the_server_closes_after_it() -> None:
    with (
        server(ANSWER) as port,
        balancing([port]) as balancer,
        connected(balancer.port) as client,
        client.makefile("rb") as received,
    ):
        client.sendall(b"request")
        assert received.read() == ANSWER


def test_a_lost_response_is_a_closed_connection() -> None:
    with server(ANSWER) as port, balancing([port]) as balancer:
        balancer.lost_responses = 1
        with connected(balancer.port) as client:
            client.sendall(b"request")
            assert client.recv(1) == b""
        assert balancer.lost_responses == 0
