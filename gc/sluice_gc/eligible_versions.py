"""The join of a shard's object versions and names, and its result as evidence of an audit.

An audit joins both to count orphans. It writes the rows that the join does not keep as evidence of
the kind `eligible`, with the tallies of the others. A plan reads these rows and the names instead
of every blob. They name candidates and prove nothing: the plan joins them with the names again, and
a run lists each version again. A check of the evidence repeats the join. Source: ADR 0069.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_gc.certificate import Certificate, shard_files
from sluice_gc.digest_join import are_named
from sluice_gc.errors import CertificateInvalid, GcRefused, RefusalRule
from sluice_gc.evidence_files import BLOBS, NAMES, read_table, read_tables
from sluice_gc.plan import VersionTally
from sluice_protocol.json_errors import UNREADABLE_JSON
from sluice_store.port import ObjectStore

Mask = npt.NDArray[np.bool_]
"""True for each selected row of a table."""

_METADATA: Final = b"sluice.gc_eligible.v1"


class LeftOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The object versions that a join keeps, by the clause that keeps them.

    Attributes:
        audit: The current versions that a manifest or reverse reference names.
        listed: The noncurrent versions without a name.
    """

    audit: VersionTally = VersionTally()
    listed: VersionTally = VersionTally()

    def plus(self, other: "LeftOut") -> "LeftOut":
        """Return the sum."""
        return LeftOut(audit=self.audit.plus(other.audit), listed=self.listed.plus(other.listed))


@dataclass(frozen=True, slots=True, kw_only=True)
class EligibleVersions:
    """The object versions that the clauses `audit` and `listed` do not keep.

    Attributes:
        rows: Rows of `BLOBS`: current versions without a name, and noncurrent ones with a name.
        named: Whether each row has a name.
        left_out: The other versions.
    """

    rows: pa.Table
    named: Mask
    left_out: LeftOut


def join_names(blobs: pa.Table, names: pa.ChunkedArray) -> EligibleVersions:
    """Return the object versions of a shard that its names do not keep.

    Args:
        blobs: Rows of `BLOBS`.
        names: Every sha256 of the shard that a manifest or reverse reference names.
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
    """Return the tallies in a stored table of eligible versions.

    Raises:
        GcRefused: The table has none, so that it is not one of eligible versions.
    """
    try:
        return msgspec.json.decode((table.schema.metadata or {})[_METADATA], type=LeftOut)
    except (KeyError, *UNREADABLE_JSON) as error:
        raise GcRefused(
            RefusalRule.EVIDENCE_CHANGED, "a file of eligible versions has no tallies"
        ) from error


async def check_eligible(store: ObjectStore, certificate: Certificate) -> None:
    """Verify that the eligible versions are those of the blobs and names of a certificate.

    Raises:
        CertificateInvalid: A file has other rows or tallies.
        GcRefused: A file is missing or was altered.
        StoreError: The store is unreachable or refused a request.
    """
    if not certificate.files("blobs"):
        return
    eligible = {one.place: one for one in certificate.files("eligible")}
    for place, names, blobs in shard_files(certificate, certificate.files("blobs")):
        known = (await read_tables(store, names, NAMES))["sha256"]
        expected = eligible_table(join_names(await read_tables(store, blobs, BLOBS), known))
        file = eligible.get(place)
        found = None if file is None else await read_table(store, file, BLOBS)
        if found is None or not found.equals(expected, check_metadata=True):
            raise CertificateInvalid(
                certificate.audit_id,
                f"the eligible versions are not those of its blobs and names, shard={place}",
            )
