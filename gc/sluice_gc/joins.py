"""Membership of 32-byte digests, a column at a time.

Names are sorted, and blobs come in the order of their keys, which is that of their digests. So the
first 8 bytes of each, as numbers, are searched in one another, nearly in order: about 16 times as
fast as a hash table of 32-byte values (0.03 s against 0.46 s for 6·10^5 in 5.4·10^5). Whoever meets
the same first 8 bytes is compared in full, so the answer is exact.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_BYTES = 32


def are_named(digests: pa.ChunkedArray, names: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Tells for each digest whether it is among `names`; neither holds nulls.

    Any order gives the same answer; sorted input gives it soonest.
    """
    wanted, known = _bytes_of(digests), _bytes_of(names)
    if not len(known) or not len(wanted):
        return np.zeros(len(wanted), bool)
    heads, places = _sorted_heads(known)
    mine = _heads(wanted)
    at = np.minimum(np.searchsorted(heads, mine), len(heads) - 1)
    same_head = heads[at] == mine
    whole: npt.NDArray[np.bool_] = same_head.copy()
    rows = np.flatnonzero(same_head)
    candidates = known[at[rows] if places is None else places[at[rows]]]
    whole[rows] = (wanted[rows] == candidates).all(axis=1)
    _settle(whole, same_head, digests, names)
    return whole


def _settle(
    whole: npt.NDArray[np.bool_],
    same_head: npt.NDArray[np.bool_],
    digests: pa.ChunkedArray,
    names: pa.ChunkedArray,
) -> None:
    """Looks again at digests that share 8 bytes with a name and are not that name: very few."""
    open_rows = np.flatnonzero(same_head & ~whole)
    if len(open_rows):
        taken = digests.take(pa.array(open_rows))
        found = pc.is_in(taken, value_set=names.combine_chunks())
        whole[open_rows] = found.to_numpy()


def _bytes_of(column: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    """Gives the bytes of a column as rows of 32, without a copy where it has one chunk."""
    parts = [_chunk_bytes(chunk) for chunk in column.chunks if len(chunk)]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.empty((0, _BYTES), np.uint8), *parts])


def _chunk_bytes(chunk: pa.Array) -> npt.NDArray[np.uint8]:
    values = np.frombuffer(chunk.buffers()[1], np.uint8)
    rows = values[chunk.offset * _BYTES : (chunk.offset + len(chunk)) * _BYTES]
    return rows.reshape(len(chunk), _BYTES)


def _heads(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Gives the first 8 bytes of each row as a number that sorts as they do."""
    words: npt.NDArray[np.uint64] = np.ascontiguousarray(rows).view(">u8")[:, 0].astype(np.uint64)
    return words


def _sorted_heads(
    known: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp] | None]:
    """Gives the heads in order, and each one's row where the rows are not in order."""
    heads = _heads(known)
    if (heads[1:] >= heads[:-1]).all():
        return heads, None
    places = np.argsort(heads, kind="stable")
    return heads[places], places
