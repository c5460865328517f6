"""A certificate is bounded: adjacent ranges become one, and long lists of files are evidence."""

import random

import pytest
from msgspec.structs import replace
from support.gc_store import VersionedStore
from support.gc_world import AUDITOR_KEY, TRUSTED, certificate, key_range, many_ranges
from support.queue_store import SimClock

from sluice_gc.audit.certificate import (
    AUDITED_PREFIXES,
    FILES_MAX,
    RANGES_MAX,
    Certificate,
    merge_ranges,
    merkle_root_of,
    put_parts,
    read_files,
    read_listed_files,
    sign_certificate,
    verify_certificate,
)
from sluice_gc.audit.certificate_chain import verify_evidence
from sluice_gc.errors import CertificateInvalid
from sluice_gc.evidence_files import MANIFESTS, EvidenceFile, put_table
from sluice_gc.key_ranges import cover_prefix, root_of_roots
from sluice_protocol.keys import ACCEPTED
from sluice_store.retry import Backoff

FOLDER = "gc/v1/evidence/A0/"


def new_store() -> VersionedStore:
    return VersionedStore(clock=SimClock(), rng=random.Random(1))


async def audited(store: VersionedStore, ranges: int) -> Certificate:
    """Return a certificate with a file of manifests for each range, as an audit makes it."""
    files: list[EvidenceFile] = []
    backoff = Backoff.seeded_by(store.clock)
    for one in many_ranges(ranges):
        place = one.start_after or "first"
        put = put_table(store, FOLDER, "manifests", place, MANIFESTS.empty_table(), backoff=backoff)
        files.append(replace(await put, prefix=ACCEPTED, first_key=one.start_after))
    coverage = tuple(
        cover_prefix(prefix, many_ranges(ranges) if prefix == ACCEPTED else [key_range()])
        for prefix in AUDITED_PREFIXES
    )
    complete = replace(
        certificate(),
        coverage=coverage,
        merkle_root=merkle_root_of(coverage),
        evidence=tuple(files),
    )
    return await put_parts(store, FOLDER, complete, backoff)


@pytest.mark.parametrize("count", [1, 2, RANGES_MAX, RANGES_MAX + 1, 1000, 1024])
def test_adjacent_ranges_become_one(count: int) -> None:
    listed = many_ranges(count)
    whole, merged = cover_prefix("p/", listed), merge_ranges(cover_prefix("p/", listed))
    assert len(merged.ranges) == min(count, -(-count // -(-count // RANGES_MAX)))
    assert len(merged.ranges) <= RANGES_MAX
    assert (merged.objects, merged.ranges[0].start_after, merged.ranges[-1].end_at) == (
        whole.objects,
        "",
        None,
    )
    parts = [one.parts for one in merged.ranges]
    assert sum(parts) == count
    assert max(one.last_date_unix_ns for one in merged.ranges) == count - 1
    if count <= RANGES_MAX:
        assert merged == whole
    else:
        assert merged.ranges[0].root == root_of_roots(one.root for one in listed[: parts[0]])


async def test_a_small_certificate_is_as_before() -> None:
    store = new_store()
    found = await audited(store, FILES_MAX)
    assert {one.kind for one in found.evidence} == {"manifests"}
    assert len(found.evidence) == len(found.coverage[0].ranges) == FILES_MAX
    assert await verify_evidence(store, found) == FILES_MAX


async def test_the_size_of_a_certificate_is_bounded() -> None:
    store = new_store()
    found = await audited(store, 300)
    assert [one.kind for one in found.evidence] == ["ranges", "files"]
    body = sign_certificate(found, AUDITOR_KEY)
    assert verify_certificate("A0", body, TRUSTED) == found
    small = len(sign_certificate(await audited(new_store(), RANGES_MAX), AUDITOR_KEY))
    assert len(body) < small
    read = await read_files(store, found, "manifests")
    assert read is not None
    assert len(read) == 300
    assert await read_files(store, found, "findings") == ()
    assert await verify_evidence(store, found) == 302


@pytest.mark.parametrize("kind", ["manifests", "files", "ranges"])
async def test_a_missing_part_is_named(kind: str) -> None:
    store = new_store()
    found = await audited(store, 100)
    files = (*found.evidence, *await read_listed_files(store, found))
    gone = next(one for one in files if one.kind == kind)
    store.remove_key(gone.key)
    with pytest.raises(CertificateInvalid, match=gone.key):
        await verify_evidence(store, found)
    if kind == "files":
        assert await read_files(store, found, "manifests") is None


async def test_ranges_that_were_not_listed_are_found() -> None:
    """The file of ranges belongs to another audit, with the same number of ranges."""
    store = new_store()
    found = await audited(store, 100)
    ranges = [replace(one, objects=4) for one in many_ranges(100)]
    coverage = (merge_ranges(cover_prefix(ACCEPTED, ranges)), *found.coverage[1:])
    other = replace(found, coverage=coverage, merkle_root=merkle_root_of(coverage))
    with pytest.raises(CertificateInvalid, match="not those that were listed"):
        await verify_evidence(store, other)
