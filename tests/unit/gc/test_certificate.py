"""Certificates: verified without a store, bounded in size, and found without a long list."""

import asyncio
import hashlib
import random
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.gc_store import VersionedStore
from support.gc_world import (
    AUDITOR_KEY,
    RIVAL,
    TRUSTED,
    MovedClock,
    certificate,
    key_range,
    many_ranges,
)
from support.queue_store import SimClock

from sluice_gc.auditor import link_after
from sluice_gc.certificate import (
    AUDITED_PREFIXES,
    FILES_MAX,
    RANGES_MAX,
    ChainLink,
    append_certificate,
    certificate_key,
    merge_ranges,
    merkle_root_of,
    prepare_key_file,
    put_parts,
    read_evidence_files,
    read_listed_files,
    read_newest,
    sign_certificate,
    verify_certificate,
    verify_chain,
)
from sluice_gc.errors import AuditIncomplete, CertificateInvalid
from sluice_gc.evidence_files import MANIFESTS, put_table
from sluice_gc.key_ranges import (
    DigestShard,
    MerkleTree,
    agent_end,
    cover_prefix,
    folder_of_agent,
    join_bounds,
    listed_leaf,
    merkle_node,
    merkle_root,
    parse_shard,
    root_of_roots,
    split_shards,
)
from sluice_gc.store_verification import verify_evidence, verify_store_chain
from sluice_protocol.collection_records import AuditCounts, Certificate, EvidenceFile, KeyRange
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import ACCEPTED, AUDIT_CHAIN, RAW_BLOBS, chain_key, digest_of
from sluice_protocol.units import ObjectKey
from sluice_store.retry import Backoff


def chain(length: int) -> list[bytes]:
    bodies: list[bytes] = []
    for index in range(length):
        before = bodies[-1] if bodies else None
        one = certificate(index, before, f"A{index}")
        bodies.append(sign_certificate(one, AUDITOR_KEY))
    return bodies


def test_chain_is_valid() -> None:
    assert [one.audit_id for one in verify_chain(chain(3), TRUSTED)] == ["A0", "A1", "A2"]


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (lambda b: [b[0], None, b[2]], "#1"),
        (lambda b: [b[0], b[2], b[1]], "A2"),
        (lambda b: [b[0], b[1].replace(b'"accepted":1', b'"accepted":2'), b[2]], "#1"),
        (lambda b: [b[0], b[1] + b" ", b[2]], "#1"),
        (lambda b: [b[1], b[2]], "A1"),
        (lambda b: [b[0], sign_certificate(certificate(1, b[0], "A1"), RIVAL), b[2]], "#1"),
        (lambda b: [b[0], sign_certificate(certificate(1, b"x", "A1"), AUDITOR_KEY), b[2]], "A1"),
    ],
    ids=["missing", "reordered", "altered", "respelled", "head cut", "foreign key", "relinked"],
)
def test_error_names_the_wrong_certificate(tamper: object, named: str) -> None:
    with pytest.raises(CertificateInvalid) as wrong:
        verify_chain(tamper(chain(3)), TRUSTED)
    assert wrong.value.audit_id == named


@pytest.mark.parametrize(
    "change",
    [
        {"coverage": certificate().coverage[:4]},
        {"merkle_root": digest_of(b"other")},
        {
            "coverage": (
                *certificate().coverage[:4],
                msgspec.structs.replace(certificate().coverage[4], objects=4),
            )
        },
    ],
)
def test_signed_certificate_without_full_coverage_is_refused(change: dict[str, object]) -> None:
    body = sign_certificate(msgspec.structs.replace(certificate(), **change), AUDITOR_KEY)
    with pytest.raises(CertificateInvalid):
        verify_certificate("A0", body, TRUSTED)


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [key_range("", "m")],
        [key_range("a")],
        [key_range("", "m"), key_range("n")],
        [key_range("", "m"), key_range("l")],
        [key_range(), key_range("m")],
        [key_range(pages=0)],
    ],
)
def test_ranges_must_be_contiguous(ranges: list[KeyRange]) -> None:
    """Ranges without pages, with a gap or with an overlap are refused."""
    with pytest.raises(AuditIncomplete):
        cover_prefix("p/", ranges)


def test_coverage_does_not_depend_on_the_order_of_ranges() -> None:
    parts = [key_range("", "m"), key_range("m", "t"), key_range("t")]
    assert cover_prefix("p/", parts) == cover_prefix("p/", reversed(parts))


def test_merkle_root_is_that_of_rfc_9162() -> None:
    """The incremental root equals the recursive definition for every size up to 20."""

    def recursive(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return leaves[0]
        half = 1 << (len(leaves) - 1).bit_length() - 1
        return merkle_node(recursive(leaves[:half]), recursive(leaves[half:]))

    assert MerkleTree().root() == hashlib.sha256(b"").hexdigest()
    for size in range(1, 21):
        leaves = [listed_leaf(f"k{at}", "e") for at in range(size)]
        assert merkle_root(leaves) == recursive(leaves).hex()


def test_shards_are_contiguous() -> None:
    """Neighbouring bounds are equal, the ends are open, and names can be parsed."""
    for count in (1, 2, 16, 256):
        shards = split_shards(count)
        bounds = [shard.bounds(RAW_BLOBS) for shard in shards]
        assert bounds[0][0] == ""
        assert bounds[-1][1] is None
        assert [end for _, end in bounds[:-1]] == [start for start, _ in bounds[1:]]
        assert [parse_shard(shard.name) for shard in shards] == list(shards)


def test_shard_contains_exactly_its_keys() -> None:
    """A key is between the bounds of the shard of its first byte, and of no other shard."""
    for digest in (digest_of(bytes([at])) for at in range(64)):
        key = f"{RAW_BLOBS}sha256/{digest[:2]}/{digest[2:4]}/{digest}.lmbatch"
        holds = [
            shard
            for shard in split_shards(256)
            for start, end in [shard.bounds(RAW_BLOBS)]
            if start < key and (end is None or key <= end)
        ]
        assert holds == [DigestShard(first=int(digest[:2], 16), end=int(digest[:2], 16) + 1)]


@pytest.mark.parametrize("text", ["", "00", "0-f", "00-zz", "10-0f", "00-100"])
def test_shard_name_of_another_form_is_refused(text: str) -> None:
    """The name of a shard is two ascending bytes in hexadecimal."""
    with pytest.raises(BadUsage):
        parse_shard(text)


def test_shard_count_must_divide() -> None:
    """A count that does not divide 256 is refused."""
    with pytest.raises(BadUsage):
        split_shards(3)


def test_bounds_never_split_an_agent() -> None:
    """Every key of an agent is on one side of a bound, also if ids share a prefix."""
    keys = [f"accepted/v1/agent={a}/boot=aa/1-2.json" for a in ("61", "6161", "61ff", "62")]
    places = [folder_of_agent(key) for key in keys]
    for at, place in enumerate(places):
        assert [key <= agent_end(place) for key in keys] == [n <= at for n in range(len(keys))]
    assert join_bounds(["b", "d"]) == [("", "b"), ("b", "d"), ("d", None)]


def test_sum_of_counts_is_the_sum_of_each_field() -> None:
    one = AuditCounts(accepted=1, gaps=2)
    assert one.plus(AuditCounts(accepted=3)) == AuditCounts(accepted=4, gaps=2)


def store_with(length: int, *, placeholders: int = 0) -> VersionedStore:
    """Return a store with a chain; its first certificates may be placeholders."""
    store = VersionedStore(clock=MovedClock())
    before: bytes | None = None
    for index in range(length):
        body = b"{}"
        if index >= placeholders:
            one = certificate(index, before, f"A{index}")
            body = sign_certificate(one, AUDITOR_KEY)
            store.put(certificate_key(one.audit_id), body)
        store.put(chain_key(index), body)
        before = body
    store.requests.clear()
    return store


def newest(store: VersionedStore) -> ChainLink:
    link = asyncio.run(read_newest(store, TRUSTED))
    assert link is not None
    return link


def test_the_newest_of_a_long_chain_costs_two_pages() -> None:
    store = store_with(6000, placeholders=5999)
    assert newest(store).certificate.chain_index == 5999
    assert store.requests["list_page"] == 2


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_missing_certificate_is_neither_hidden_nor_replaced(lost: int) -> None:
    """The next certificate follows the last one, and the verification names the missing one."""
    store = store_with(4)
    store.remove_key(chain_key(lost))
    head = await read_newest(store, TRUSTED)
    assert head.certificate.chain_index == 3
    linked = link_after(certificate(0, None, "A4"), head)
    assert await append_certificate(
        store, linked, sign_certificate(linked, AUDITOR_KEY), Backoff.seeded_by(store.clock)
    )
    assert chain_key(4) in store.versions
    assert chain_key(lost) not in store.versions
    with pytest.raises(CertificateInvalid) as wrong:
        await verify_store_chain(store, TRUSTED)
    assert wrong.value.audit_id == f"#{lost}"


def test_a_certificate_that_was_copied_to_a_later_position_is_refused() -> None:
    """An earlier certificate as the newest one would release the evidence of later ones."""
    store = store_with(3)
    store.put(chain_key(3), store.versions[chain_key(1)][0].body)
    with pytest.raises(CertificateInvalid, match="reordered"):
        newest(store)


def test_a_last_key_that_is_not_a_position_is_refused() -> None:
    store = store_with(2)
    store.put(ObjectKey(f"{AUDIT_CHAIN}x.json"), b"{}")
    with pytest.raises(InvalidRecord, match="not a position"):
        newest(store)


def test_a_key_file_is_not_created_next_to_a_long_chain(tmp_path: Path) -> None:
    store = store_with(2001, placeholders=2001)
    with pytest.raises(BadUsage, match="copy it from the machine that audited before"):
        asyncio.run(prepare_key_file(store, tmp_path / "auditor.pem"))
    assert store.requests["list_page"] == 1


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
    read = await read_evidence_files(store, found, "manifests")
    assert read is not None
    assert len(read) == 300
    assert await read_evidence_files(store, found, "findings") == ()
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
        assert await read_evidence_files(store, found, "manifests") is None


async def test_ranges_that_were_not_listed_are_found() -> None:
    """The file of ranges belongs to another audit, with the same number of ranges."""
    store = new_store()
    found = await audited(store, 100)
    ranges = [replace(one, objects=4) for one in many_ranges(100)]
    coverage = (merge_ranges(cover_prefix(ACCEPTED, ranges)), *found.coverage[1:])
    other = replace(found, coverage=coverage, merkle_root=merkle_root_of(coverage))
    with pytest.raises(CertificateInvalid, match="not those that were listed"):
        await verify_evidence(store, other)
