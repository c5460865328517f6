"""The join of digests: which of them are in a column of names. It is exact for any order."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_BYTES: Final = 32
STEP_DIGESTS: Final = 16_384
"""Digests that are compared together. Their temporary arrays stay in the cache of one core."""
_FOUR_TRUE: Final = np.ones(4, np.bool_).view(np.uint32)[0]


def are_named(
    digests: pa.ChunkedArray, names: pa.ChunkedArray, *, step_digests: int = STEP_DIGESTS
) -> npt.NDArray[np.bool_]:
    """Return for each digest whether it is in `names`; neither column contains nulls.

    The order does not change the result; sorted input is fastest. Names are sorted, and blobs have
    the order of their keys, which is the order of their digests. So the digests of one step are
    searched among few names, by their first 8 bytes as numbers. Digests with equal first bytes are
    compared completely, so that the result is exact.

    Args:
        digests: The digests to search.
        names: The digests to search for.
        step_digests: Digests that are compared together.
    """
    wanted, known = _bytes_of(digests), _bytes_of(names)
    whole = np.zeros(len(wanted), bool)
    if not len(known):
        return whole
    heads, places = _sorted_heads(known)
    known_words = known.view(np.uint64)
    undecided: list[npt.NDArray[np.intp]] = []
    for start in range(0, len(wanted), step_digests):
        step = wanted[start : start + step_digests]
        at = _search(heads, _heads(step))
        nearest = known_words.take(at if places is None else places[at], axis=0)
        equal = nearest == step.view(np.uint64)
        found = equal.view(np.uint32).ravel() == _FOUR_TRUE
        whole[start : start + len(step)] = found
        undecided.append(np.flatnonzero(equal[:, 0] & ~found) + start)
    _compare_in_full(whole, np.concatenate([np.empty(0, np.intp), *undecided]), digests, names)
    return whole


def _search(heads: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return for each number the place of the first head that is not below it, or the last place.

    Args:
        heads: Sorted numbers, at least one.
        wanted: Numbers in any order, at least one. Those between two near numbers are found sooner.
    """
    low = int(np.searchsorted(heads, wanted.min()))
    high = int(np.searchsorted(heads, wanted.max(), side="right"))
    at = np.searchsorted(heads[low:high], wanted)
    at += low
    return np.minimum(at, len(heads) - 1, out=at)


def _compare_in_full(
    whole: npt.NDArray[np.bool_],
    undecided: npt.NDArray[np.intp],
    digests: pa.ChunkedArray,
    names: pa.ChunkedArray,
) -> None:
    """Decide the few digests that share 8 bytes with a name but differ from it."""
    if len(undecided):
        taken = digests.take(pa.array(undecided))
        found = pc.is_in(taken, value_set=names.combine_chunks())
        whole[undecided] = found.to_numpy()


def _bytes_of(column: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    """Return the bytes of a column as rows of 32; a column with one chunk is not copied."""
    parts = [_chunk_bytes(chunk) for chunk in column.chunks if len(chunk)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.empty((0, _BYTES), np.uint8), *parts])


def _chunk_bytes(chunk: pa.Array) -> npt.NDArray[np.uint8]:
    values = np.frombuffer(chunk.buffers()[1], np.uint8)
    rows = values[chunk.offset * _BYTES : (chunk.offset + len(chunk)) * _BYTES]
    return rows.reshape(len(chunk), _BYTES)


def _heads(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return the first 8 bytes of each row as a number with the same order."""
    words: npt.NDArray[np.uint64] = np.ascontiguousarray(rows).view(">u8")[:, 0].astype(np.uint64)
    return words


def _sorted_heads(
    known: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp] | None]:
    """Return the sorted first bytes, and the row of each if the rows are not sorted."""
    heads = _heads(known)
    if (heads[1:] >= heads[:-1]).all():
        return heads, None
    places = np.argsort(heads, kind="stable")
    return heads[places], places
