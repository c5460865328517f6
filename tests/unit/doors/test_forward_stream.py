"""Fluent's messages in a stream, and the digests of its handshake."""

import hashlib
import random

import msgpack
import pytest
from support.door_bodies import FORWARD, S, pack

from sluice_doors.decoded import BodyTooLarge, BodyUnreadable
from sluice_doors.forward.handshake import Greeting, encode_ack, encode_pong, read_ping
from sluice_doors.forward.messages import MessageSplitter, read_message

GREETING = Greeting(nonce=b"n" * 16, auth_salt=b"a" * 16)


def sha512(*parts: bytes) -> str:
    return hashlib.sha512(b"".join(parts)).hexdigest()


@pytest.mark.parametrize("seed", range(5))
def test_messages_are_found_however_the_stream_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    messages = [*FORWARD.values(), pack([]), pack(["t", b"x" * 100_000])] * 3
    stream = b"\xc0".join(messages)
    splitter, found = MessageSplitter(200_000), []
    place = 0
    while place < len(stream):
        size = rng.choice((1, 3, 50, 5_000, 70_000))
        splitter.feed(stream[place : place + size])
        found += splitter.take()
        place += size
    assert (found, splitter.pending_bytes) == (messages, 0)


@pytest.mark.parametrize("data", [b"G", b"\xa1a", b"\x81\x01\x01", b"\x91\xc1", b"\x91" * 3_000])
def test_a_stream_that_is_no_array_is_refused(data: bytes) -> None:
    splitter = MessageSplitter(1_000_000)
    splitter.feed(data)
    with pytest.raises(BodyUnreadable):
        splitter.take()


def test_messages_before_an_error_are_returned_first() -> None:
    splitter = MessageSplitter(1_000_000)
    splitter.feed(FORWARD["message"] + b"\xc1")
    assert splitter.take() == [FORWARD["message"]]
    with pytest.raises(BodyUnreadable):
        splitter.take()


def test_a_message_is_bounded_while_it_arrives() -> None:
    splitter = MessageSplitter(1_000)
    splitter.feed(pack(["t", b"x" * 2_000])[:1_500])
    with pytest.raises(BodyTooLarge):
        splitter.take()


def test_a_claimed_length_is_no_message() -> None:
    splitter = MessageSplitter(1_000)
    splitter.feed(b"\xdd\xff\xff\xff\xff" * 100)
    assert splitter.take() == []


@pytest.mark.parametrize(
    ("option", "chunk"),
    [
        ({"chunk": "c"}, "c"),
        ({"chunk": b"\xff"}, b"\xff"),
        ({"chunk": ""}, None),
        ({"chunk": 5}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_name_of_a_message(option: object, chunk: object) -> None:
    for message in (["t", S, {}, option], ["t", [[S, {}]], option], ["t", b"", option]):
        found = read_message(pack(message))
        assert found.chunk == chunk


def ping(digest: str, hidden: str = "", username: str = "u") -> bytes:
    return pack(["PING", "host", b"salt", digest, username, hidden])


def test_a_ping_proves_the_key_and_the_password() -> None:
    digest = sha512(b"salt", b"host", GREETING.nonce, b"key")
    hidden = sha512(GREETING.auth_salt, b"u", b"p")
    found = read_ping(ping(digest, hidden))
    assert found.proves_key(GREETING, "key")
    assert found.proves_password(GREETING, "u", "p")
    assert not found.proves_key(GREETING, "other")
    assert not found.proves_key(Greeting(nonce=b"m" * 16, auth_salt=b""), "key")
    assert not found.proves_password(GREETING, "v", "p")
    assert not found.proves_password(GREETING, "u", "q")
    kind, accepted, reason, host, proof = msgpack.unpackb(
        encode_pong(GREETING, found, "server", "key")
    )
    assert (kind, accepted, reason, host) == ("PONG", True, "", "server")
    assert proof == sha512(b"salt", b"server", GREETING.nonce, b"key")


@pytest.mark.parametrize(
    "data",
    [
        FORWARD["message"],
        pack([]),
        pack(["PING"]),
        pack(["PONG", 1, 2, 3, 4, 5]),
        b"\x91\x81\x90\x01",
    ],
)
def test_another_message_is_no_ping(data: bytes) -> None:
    with pytest.raises(BodyUnreadable):
        read_ping(data)


def test_values_of_other_types_prove_nothing() -> None:
    found = read_ping(pack(["PING", None, 5, [], {}, 1.5]))
    assert not found.proves_key(GREETING, "")
    assert not found.proves_password(GREETING, "", "")


@pytest.mark.parametrize("chunk", ["c", b"\xff", "c\udcff"])
def test_an_ack_repeats_the_name_as_it_came(chunk: str | bytes) -> None:
    found = msgpack.unpackb(encode_ack(chunk), unicode_errors="surrogateescape")
    assert found == {"ack": chunk}
