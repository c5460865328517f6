"""The join of a shard's object versions and names, and its result as evidence of an audit.

An audit joins both to count orphans. It writes the rows that the join does not keep as evidence of
the kind `eligible`, with the tallies of the others. A plan reads these rows and the names instead
of every blob. They name candidates and prove nothing: the plan joins them with the names again, and
a run lists each version again. A check of the evidence repeats the join. The join of digests is
exact for any order. Source: ADR 38.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_gc.errors import GcRefused, RefusalRule
from sluice_protocol.collection_records import VersionTally
from sluice_protocol.errors import UNREADABLE_JSON

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

    `heads` are sorted; `wanted` has any order, but neighbours that are near are found sooner.
    Neither is empty.
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


Mask = npt.NDArray[np.bool_]
"""True for each selected row of a table."""

_METADATA: Final = b"sluice.gc_eligible.v1"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object versions that a join keeps, by the clause that keeps them.

    `audit` are the current versions that a manifest or reverse reference names; `listed` are the
    noncurrent versions without a name.
    """

    audit: VersionTally = VersionTally()
    listed: VersionTally = VersionTally()

    def plus(self, other: "LeftOut") -> "LeftOut":
        """Return the sum."""
        return LeftOut(audit=self.audit.plus(other.audit), listed=self.listed.plus(other.listed))


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleVersions:
    """The object versions that the clauses `audit` and `listed` do not keep.

    `rows` of `BLOBS` are current versions without a name, and noncurrent versions with a name, as
    `named` states of each row.
    """

    rows: pa.Table
    named: Mask
    left_out: LeftOut


def join_names(blobs: pa.Table, names: pa.ChunkedArray) -> EligibleVersions:
    """Return the object versions of a shard that its names do not keep.

    `names` has every sha256 of the shard that a manifest or reverse reference names.
    """
    named = are_named(blobs["sha256"], names)
    current, sizes = blobs["current"].to_numpy(), blobs["size_bytes"].to_numpy()
    left_out = LeftOut(
        audit=tally_rows(sizes, named & current), listed=tally_rows(sizes, ~named & ~current)
    )
    eligible = named != current
    if not eligible.all():  # the rows of an audit's own join are not copied
        blobs, named = blobs.filter(pa.array(eligible)), named[eligible]
    return EligibleVersions(rows=blobs, named=named, left_out=left_out)


def tally_rows(sizes: npt.NDArray[np.int64], mask: Mask) -> VersionTally:
    """Return the number of selected rows and their bytes."""
    count = int(np.count_nonzero(mask))
    if 2 * count > len(mask):  # fewer sizes are copied
        size_bytes = int(sizes.sum()) - int(sizes[~mask].sum())
    else:
        size_bytes = int(sizes[mask].sum())
    return VersionTally(incarnations=count, bytes=size_bytes)


def eligible_table(versions: EligibleVersions) -> pa.Table:
    """Return the rows with the tallies of the others as metadata, as an audit stores them."""
    return versions.rows.replace_schema_metadata(
        {_METADATA: msgspec.json.encode(versions.left_out)}
    )


def left_out_of(table: pa.Table) -> LeftOut:
    """Return the tallies in a stored table of eligible versions; refuse a table without them."""
    try:
        return msgspec.json.decode((table.schema.metadata or {})[_METADATA], type=LeftOut)
    except (KeyError, *UNREADABLE_JSON) as error:
        raise GcRefused(
            RefusalRule.EVIDENCE_CHANGED, "a file of eligible versions has no tallies"
        ) from error
