"""Heads that occur again: what is equal, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_gateway.doors.repeated_heads import (
    HEAD_BYTES_MAX,
    RepeatedHead,
    head_of,
    repeated_head,
)

HEAD = (
    b"POST /v1/ingest?time=t HTTP/1.1\r\nHost: gateway\r\ncontent-LENGTH: %s\r\nAccept: */*\r\n\r\n"
)


def known(head: bytes = HEAD % b"3") -> RepeatedHead:
    found = repeated_head(head)
    assert found is not None
    return found


def test_a_head_with_another_length_is_known() -> None:
    assert known().body_of(HEAD % b"12" + b"x" * 12) == b"x" * 12
    assert known().body_of(HEAD % b"3" + b"abc") == b"abc"


@pytest.mark.parametrize(
    "received",
    [
        HEAD % b"3" + b"ab",  # a part of the body
        HEAD % b"3" + b"abcd",  # more than the body
        HEAD % b"3" + b"abc" + HEAD % b"1" + b"a",  # two requests
        (HEAD % b"3")[:-1],
        (HEAD % b"3")[:20],
        b"",
        HEAD % b"03" + b"abc",  # a form that no other server must read in another way
        HEAD % b"+3" + b"abc",
        HEAD % b" 3" + b"abc",
        HEAD % b"3 " + b"abc",
        HEAD % b"" + b"abc",
        HEAD % b"0",
        HEAD % "٣".encode() + b"abc",
        HEAD % b"9999999999",
        (HEAD % b"3").replace(b"Accept", b"accept") + b"abc",
        (HEAD % b"3").replace(b"gateway", b"Gateway") + b"abc",
        (HEAD % b"3").replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n") + b"abc",
        (HEAD % b"3").replace(b"Host", b"Content-Length: 1\r\nHost") + b"abc",
    ],
)
def test_everything_else_is_not(received: bytes) -> None:
    assert known().body_of(received) is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nX-Content-Length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_a_head_without_one_length_is_not_remembered(head: bytes) -> None:
    assert repeated_head(head) is None


def test_only_whole_heads_of_usual_size_are_found() -> None:
    assert head_of(HEAD % b"3" + b"abc") == HEAD % b"3"
    assert head_of((HEAD % b"3")[:-1]) == b""
    assert head_of(b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n") == b""


LINES = st.lists(st.sampled_from([b"Host: a", b"Accept: */*", b"Content-Length : 7", b"X: 1\r2"]))


@given(before=LINES, after=LINES, size=st.integers(1, 99_999), body=st.binary(max_size=40))
def test_a_known_head_has_exactly_the_body_that_follows(
    before: list[bytes], after: list[bytes], size: int, body: bytes
) -> None:
    def head(length: int) -> bytes:
        own = b"Content-Length: %d" % length
        return b"\r\n".join((b"POST /x HTTP/1.1", *before, own, *after)) + b"\r\n\r\n"

    found = repeated_head(head(size))
    if found is None:
        return
    assert found.body_of(head(len(body)) + body) == (body or None)
    assert found.body_of(head(len(body) + 1) + body) is None
    assert found.body_of(head(len(body)) + body + b"P") is None
