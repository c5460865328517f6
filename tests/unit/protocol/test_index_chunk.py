import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sluice_protocol.errors import InvalidRecord, UnsupportedRecord
from sluice_protocol.index_chunk import (
    TEXT_BYTES_MIN,
    FileIndex,
    IndexedFile,
    build_filter,
    chunk_id,
    decode_chunk,
    encode_chunk,
)


def indexed(path: str, *texts: bytes) -> FileIndex:
    bits_log2, bits = build_filter(texts)
    entry = IndexedFile(
        path=path,
        size_bytes=1,
        records=len(texts),
        min_ts_ns=1,
        max_ts_ns=2,
        agents=("a",),
        bits_log2=bits_log2,
    )
    return FileIndex(file=entry, filter=bits)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=8), st.data())
def test_filter_matches_every_text_in_the_file(texts: list[bytes], data: st.DataObject) -> None:
    body = data.draw(st.sampled_from(texts))
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, len(body)))
    assert indexed("p", *texts).may_contain(body[start:end])


def test_filter_rejects_nearly_every_absent_text() -> None:
    """Hardly any absent text of 16 hex digits matches; a short text always does."""
    lines = [
        b"GET /items/%016x?q=%d 200" % (n * 0x9E3779B97F4A7C15 % 2**64, n) for n in range(5000)
    ]
    found = indexed("p", b"".join(lines))
    passed = sum(found.may_contain(b"%016x" % (n * 0xD6E8FEB86659FD93 % 2**64)) for n in range(500))
    assert passed < 25
    assert found.may_contain(b"x" * (TEXT_BYTES_MIN - 1))
    assert len(found.filter) < sum(map(len, lines)) // 8


def test_chunk_decodes_to_what_was_encoded() -> None:
    """A chunk decodes to its files and filters; a cut or foreign one is rejected."""
    files = [indexed("b", b"hello wide world"), indexed("a", b"another body of text")]
    body = encode_chunk("logs", files)
    found = decode_chunk("k", body)
    assert [one.file.path for one in found] == ["a", "b"]
    assert found[1].filter == files[0].filter
    assert encode_chunk("logs", files[::-1]) == body
    for wrong in (body[:-3], b"x", b""):
        with pytest.raises(InvalidRecord):
            decode_chunk("k", wrong)
    assert chunk_id(["a", "b"]) == chunk_id(["b", "a"])


@pytest.mark.parametrize("version", [0, 2])
def test_a_chunk_of_another_version_is_unreadable(version: int) -> None:
    raw = zstandard.ZstdDecompressor().decompress(encode_chunk("logs", [indexed("a", b"text")]))
    raw = raw.replace(b"sluice.index.v1", b"sluice.index.v%d" % version)
    with pytest.raises(UnsupportedRecord) as refused:
        decode_chunk("k", zstandard.ZstdCompressor().compress(raw))
    assert (refused.value.found, refused.value.known, refused.value.key) == (version, 1, "k")


def test_ids_are_found_whole_next_to_texts() -> None:
    """No id of the file is missing, and hardly any other passes; texts are found as without ids."""
    ids = [b"%032x" % (n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128) for n in range(5_000)]
    bits_log2, bits = build_filter([b"a line with some words"], ids)
    found = FileIndex(file=replace(indexed("p").file, bits_log2=bits_log2), filter=bits)
    assert all(map(found.may_have, ids))
    assert sum(found.may_have(b"%032x" % n) for n in range(2_000)) < 40
    assert found.may_contain(b"line with some")
    assert not found.may_contain(b"line without any")
    assert len(bits) < 8 * len(ids)
