from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.index_store import indexed, terms_of

from sluice_protocol.errors import InvalidRecord, UnsupportedRecord
from sluice_protocol.fields import TEXT_BYTES_MIN
from sluice_protocol.index_chunk import (
    PAGE_BYTES,
    FileTerms,
    Filter,
    IndexedFile,
    TermsWanted,
    check_page,
    chunk_id,
    decode_chunk_head,
    encode_chunk,
    folded,
    groups_meeting,
    hash_text,
    hash_texts,
    head_size,
    looked_up,
    pages_wanted,
    value_terms,
)


def found_in(chunk: bytes, *wanted: TermsWanted) -> list[bool]:
    """Return which row groups of a chunk may have the terms of all conditions."""
    head, after = decode_chunk_head("k", chunk), head_size("k", chunk)
    conditions = [[one] for one in wanted]
    pages = {
        page: check_page("k", chunk[after + at : after + at + PAGE_BYTES])
        for page, at in pages_wanted(head, conditions).items()
    }
    found: list[bool] = groups_meeting(head, pages, conditions).tolist()
    return found


def text(wanted: str, *, ignore_case: bool = False) -> TermsWanted:
    return TermsWanted(Filter.TEXTS, looked_up(wanted, ignore_case=ignore_case))


def value(place: str, wanted: str) -> TermsWanted:
    return TermsWanted(
        Filter.VALUES, tuple(value_terms(place, hash_text(wanted.encode())).ravel().tolist())
    )


@given(st.lists(st.lists(st.text(max_size=30), max_size=4), min_size=1, max_size=12), st.data())
def test_every_part_of_a_text_is_found_in_its_row_group(
    groups: list[list[str]], data: st.DataObject
) -> None:
    """Blocks of several sizes, row groups without texts, and any characters."""
    terms = [terms_of(*(one.encode() for one in group)) for group in groups]
    file = IndexedFile(path="p", size_bytes=1, groups=(1,) * len(groups))
    chunk = encode_chunk("logs", [FileTerms(file=file, groups=tuple(terms))])
    number = data.draw(st.integers(0, len(groups) - 1))
    for body in groups[number]:
        start = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(start, len(body)))
        for ignore_case in (False, True):
            assert found_in(chunk, text(body[start:end], ignore_case=ignore_case))[number]


def test_filters_reject_nearly_every_absent_text() -> None:
    """A chunk of 20 row groups: hardly any absent text of 16 hex digits passes one of them."""
    groups, size_bytes = [], 0
    for group in range(20):
        lines = [
            b"GET /items/%016x?q=%d 200" % (n * 0x9E3779B97F4A7C15 % 2**64, n)
            for n in range(group * 1000, (group + 1) * 1000)
        ]
        size_bytes += sum(map(len, lines))
        groups.append(terms_of(*lines))
    file = IndexedFile(path="p", size_bytes=1, groups=(1000,) * 20)
    chunk = encode_chunk("logs", [FileTerms(file=file, groups=tuple(groups))])
    absent = [f"{n * 0xD6E8FEB86659FD93 % 2**64:016x}" for n in range(200)]
    assert sum(sum(found_in(chunk, text(one))) for one in absent) < 200 * 20 // 20
    present = f"{7_500 * 0x9E3779B97F4A7C15 % 2**64:016x}"
    assert found_in(chunk, text(present))[7]
    assert sum(found_in(chunk, text(present))) < 3
    assert text("x" * (TEXT_BYTES_MIN - 1)).terms == ()
    assert len(chunk) < size_bytes // 14


def test_at_most_half_of_a_filter_is_set() -> None:
    """So one unrelated gram of a text rules out at least every second row group."""
    for lines in (1_000, 3_000, 9_000):
        group = terms_of(*(b"item %d of %d" % (n * n, n % 997) for n in range(lines)))
        group = replace(group, text_bytes=2**30)
        file = IndexedFile(path="p", size_bytes=1, groups=(lines,))
        chunk = encode_chunk("logs", [FileTerms(file=file, groups=(group,))])
        head = decode_chunk_head("k", chunk)
        (block,) = [one for one in head.blocks if one.filter is Filter.TEXTS]
        rows = {block.row_of(term) for term in group.texts.tolist()}
        assert 0.35 < len(rows) / block.bits < 0.51, lines


def test_a_text_is_found_without_regard_to_case() -> None:
    """Letters outside of ASCII end a part of a text, because they have several forms."""
    chunk = encode_chunk(
        "logs", [indexed("p", "Kernel PANIC: größe 300\u212a, \u017ftop".encode())]
    )
    for wanted in ("kernel panic", "KERNEL PANIC", "panic: GR", "300k, stop", "panic: grÖSSE"):
        assert found_in(chunk, text(wanted, ignore_case=True)) == [True]
    assert found_in(chunk, text("kernel picnic", ignore_case=True)) == [False]
    assert folded("\u0130\u017fK".encode()) == b"isk"


@given(st.lists(st.binary(max_size=400_000) | st.binary(max_size=9), max_size=8))
def test_a_hash_depends_on_its_text_only(texts: list[bytes]) -> None:
    ends = np.concatenate(([0], np.cumsum([len(one) for one in texts]))).astype(np.int64)
    found = hash_texts(np.frombuffer(b"".join(texts), np.uint8), ends)
    assert found.tolist() == [int(hash_text(one)[0]) for one in texts]
    assert len(set(found.tolist())) == len(set(texts))


def test_values_are_found_whole_and_at_their_place() -> None:
    """No value of the row group is missing, and hardly any other passes."""
    ids = [f"{n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for n in range(5_000)]
    terms = np.concatenate(
        [value_terms("trace_id", hash_text(one.encode())).ravel() for one in ids]
    )
    groups = replace(terms_of(b"a line"), values=np.unique(terms))
    file = IndexedFile(path="p", size_bytes=1, groups=(5_000,))
    chunk = encode_chunk("logs", [FileTerms(file=file, groups=(groups,))])
    assert all(found_in(chunk, value("trace_id", one)) == [True] for one in ids[::100])
    assert sum(found_in(chunk, value("attributes.id", one))[0] for one in ids[::20]) < 8
    assert sum(found_in(chunk, value("trace_id", f"{n:032x}"))[0] for n in range(250)) < 8
    assert len(chunk) < 3.5 * len(ids)


def test_alternatives_and_conditions_are_combined() -> None:
    chunk = encode_chunk("logs", [indexed(one, one.encode() * 9) for one in ("first", "second")])
    head, after = decode_chunk_head("k", chunk), head_size("k", chunk)
    some, other = text("firstfirst"), text("secondsecond")

    def found(wanted: list[list[TermsWanted]]) -> list[bool]:
        pages = {
            page: chunk[after + at : after + at + PAGE_BYTES]
            for page, at in pages_wanted(head, wanted).items()
        }
        result: list[bool] = groups_meeting(head, pages, wanted).tolist()
        return result

    assert found([[some]]) == [True, False]
    assert found([[some, other]]) == [True, True]
    assert found([[some], [other]]) == [False, False]


def test_chunk_decodes_to_what_was_encoded() -> None:
    """A chunk is a function of its files; a damaged head or page is rejected."""
    files = [indexed("b", b"hello wide world"), indexed("a", b"another body of text")]
    body = encode_chunk("logs", files)
    assert [one.path for one in decode_chunk_head("k", body).files] == ["a", "b"]
    assert encode_chunk("logs", files[::-1]) == body
    start = head_size("k", body)
    damaged = body[: start - 1] + bytes([body[start - 1] ^ 1])
    for wrong in (body[: start - 1], damaged, b"LMI2" + body[4:], b"x", b""):
        with pytest.raises(InvalidRecord):
            decode_chunk_head("k", wrong)
    page = body[start : start + PAGE_BYTES]
    assert check_page("k", page) == page
    for wrong in (page[:-1], bytes([page[0] ^ 1]) + page[1:]):
        with pytest.raises(InvalidRecord):
            check_page("k", wrong)
    assert chunk_id(["a", "b"]) == chunk_id(["b", "a"])


@pytest.mark.parametrize("version", [0, 3])
def test_a_chunk_of_another_version_is_unreadable(version: int) -> None:
    body = encode_chunk("logs", [indexed("a", b"text")])
    head = zstandard.ZstdDecompressor().decompress(body[12 : head_size("k", body)])
    head = head.replace(b"sluice.index.v2", b"sluice.index.v%d" % version)
    packed = zstandard.ZstdCompressor().compress(head)
    start = b"LMI3" + len(packed).to_bytes(4, "little") + crc32(packed).to_bytes(4, "little")
    with pytest.raises(UnsupportedRecord) as refused:
        decode_chunk_head("k", start + packed)
    assert (refused.value.found, refused.value.known, refused.value.key) == (version, 2, "k")
