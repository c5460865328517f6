"""Decompression of request bodies: every coding, its limit, and damaged data."""

import gzip
import re
import sys
import tracemalloc
import zlib

import pytest
import zstandard
from cramjam import snappy

from sluice_doors.content_coding import MEMBERS_MAX, decompress
from sluice_doors.decoded import BodyTooLarge, BodyUnreadable
from sluice_protocol.distribution import install_command

TEXT = b"a line of a log; " * 400
MIB = 1 << 20


def zstd(data: bytes, *, stated: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=stated).compress(data)


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


CODED = {
    "identity": (lambda data: data),
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate raw": raw_deflate,
    "zstd": zstd,
    "zstd without size": (lambda data: zstd(data, stated=False)),
    "snappy block": (lambda data: bytes(snappy.compress_raw(data))),
    "snappy stream": (lambda data: bytes(snappy.compress(data))),
}


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(range(256)) * 1000])
def test_a_body_is_decompressed_within_the_limit_only(name: str, data: bytes) -> None:
    coding, body = name.split(maxsplit=1)[0], CODED[name](data) or b"\xff\x06\x00\x00sNaPpY"
    body = data if coding == "identity" else body
    assert decompress(body, coding, bytes_max=len(data)) == data
    assert decompress(body, f" {coding.upper()} ", bytes_max=len(data) + 1) == data
    if data:
        with pytest.raises(BodyTooLarge):
            decompress(body, coding, bytes_max=len(data) - 1)


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", [name for name in CODED if name != "identity"])
def test_a_bomb_is_refused_before_it_fills_memory(name: str) -> None:
    body = CODED[name](bytes(200 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            decompress(body, name.split(maxsplit=1)[0], bytes_max=MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB + len(body)


@pytest.mark.parametrize("name", [name for name in CODED if name != "identity"])
@pytest.mark.parametrize("kept", [0, 1, 5, -9, -1])
def test_truncated_data_is_unreadable(name: str, kept: int) -> None:
    with pytest.raises(BodyUnreadable):
        decompress(CODED[name](TEXT)[:kept], name.split(maxsplit=1)[0], bytes_max=MIB)


@pytest.mark.parametrize("name", [name for name in CODED if name != "identity"])
def test_bytes_after_the_end_are_unreadable(name: str) -> None:
    with pytest.raises(BodyUnreadable):
        decompress(CODED[name](TEXT) + b"more bytes", name.split(maxsplit=1)[0], bytes_max=MIB)


@pytest.mark.parametrize(
    ("coding", "compress"), [("gzip", gzip.compress), ("zstd", zstd), ("x-gzip", gzip.compress)]
)
def test_several_members_are_joined(coding: str, compress: object) -> None:
    body = CODED[coding.removeprefix("x-")](b"one ") + CODED[coding.removeprefix("x-")](b"two")
    assert decompress(body, coding, bytes_max=7) == b"one two"
    with pytest.raises(BodyTooLarge):
        decompress(body, coding, bytes_max=6)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_very_many_members_are_refused(coding: str) -> None:
    """Each member copies the rest of the body, so a body of small ones takes quadratic time."""
    with pytest.raises(BodyUnreadable, match="more than"):
        decompress(CODED[coding](b"") * (MEMBERS_MAX + 1), coding, bytes_max=MIB)


@pytest.mark.parametrize("body", [b'{"streams": []}', b" [1]"])
def test_json_without_its_type_is_named(body: bytes) -> None:
    """`curl --data` names the type of a form, so the body is taken for a snappy block."""
    with pytest.raises(BodyUnreadable, match="needs `Content-Type: application/json`"):
        decompress(body, "snappy", bytes_max=MIB)


def test_without_its_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(BodyUnreadable, match=re.escape(install_command("doors"))):
        decompress(b"x", "snappy", bytes_max=MIB)


def test_a_lying_snappy_head_allocates_nothing() -> None:
    with pytest.raises(BodyTooLarge):
        decompress(b"\xff\xff\xff\xff\x0fabc", "snappy", bytes_max=MIB)
    with pytest.raises(BodyUnreadable):
        decompress(b"\x80\x80\x40abc", "snappy", bytes_max=MIB)


def test_an_unknown_coding_is_unreadable() -> None:
    with pytest.raises(BodyUnreadable, match="use one of deflate, gzip"):
        decompress(b"", "br", bytes_max=MIB)
