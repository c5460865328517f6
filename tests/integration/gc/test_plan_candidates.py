"""The candidates of a plan as operators see them: pages, a search, one blob, and bad input."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from support.gc_store import SimulatedVersion, VersionedStore
from support.gc_world import KEY, KEYS, START_NS, GcWorld, memory_world

from sluice_gc.candidate_views import PLANNED, CandidateDetail, CandidatePage
from sluice_gc.certificate import certificate_key
from sluice_gc.errors import GcRefused
from sluice_gc.evidence_files import CANDIDATES, CANDIDATES_PER_GROUP, encode_table
from sluice_gc.key_ranges import split_shards
from sluice_gc.plan import plan_key, sign_plan
from sluice_gc.plan_candidates import read_candidate, read_candidates
from sluice_protocol.blob_deletion import PLAN_CLAUSES, Candidate, ClauseCheck, Evidence, MustKeep
from sluice_protocol.collection_records import EvidenceFile, Plan, PlanSummary, VersionTally
from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import blob_key, digest_of
from sluice_protocol.outcomes import GetOutcome
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, ObjectVersion, UnixNs

DAY_S = 86_400
Scenario = Callable[..., Coroutine[None, None, None]]
UNKNOWN_PLAN = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def in_a_loop(scenario: Scenario) -> Callable[..., None]:
    """Run a test that is a coroutine."""

    @wraps(scenario)
    def test() -> None:
        asyncio.run(scenario())

    return test


@dataclass
class Planned:
    """A plan over a store with orphans, a superseded version, and blobs that are kept."""

    world: GcWorld
    store: VersionedStore
    plan: Plan
    orphans: list[Digest]
    named: Digest
    superseded: Digest
    young: Digest

    async def page(self, **wanted: int | str) -> CandidatePage:
        found = await read_candidates(self.store, self.plan.plan_id, **wanted)  # type: ignore[arg-type]
        assert found is not None
        return found

    async def detail(self, digest: Digest) -> CandidateDetail:
        found = await read_candidate(self.store, self.plan.plan_id, digest)
        assert found is not None
        return found

    def damage(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Change the bytes of an object in place, as a failing disk does."""
        held = self.store.versions[ObjectKey(key)][0]
        self.store.versions[ObjectKey(key)][0] = SimulatedVersion(
            body=change(held.body), incarnation=held.incarnation, at_ns=held.at_ns
        )


@asynccontextmanager
async def planned() -> AsyncIterator[Planned]:
    async with memory_world() as (world, store):
        named = await world.accept(0)
        orphans = sorted([await world.orphan(start) for start in range(300, 330, 3)])
        superseded = await world.accept(600)
        world.clock.pass_s(10)
        store.put(blob_key(superseded), store.versions[blob_key(superseded)][0].body)
        world.clock.pass_s(2 * DAY_S)
        young = await world.orphan(900)
        await world.audit()
        plan = await world.plan()
        yield Planned(world, store, plan, orphans, named, superseded, young)


@in_a_loop
async def test_pages_contain_every_candidate_once_with_the_values_of_its_clauses() -> None:
    async with planned() as case:
        wanted = sorted([*case.orphans, case.superseded])
        whole = await case.page()
        assert [one.sha256 for one in whole.candidates] == wanted
        assert (whole.total, whole.more, whole.signature_checked) == (11, False, False)
        paged = [await case.page(after=at, limit=4) for at in (0, 4, 8)]
        assert [one.sha256 for page in paged for one in page.candidates] == wanted
        assert [page.more for page in paged] == [True, True, False]
        assert (await case.page(after=11)).candidates == ()
        orphan = next(one for one in whole.candidates if not one.superseded)
        assert orphan.key == blob_key(Digest(orphan.sha256))
        assert orphan.age_s == 2 * DAY_S + 10
        assert [(one.clause, one.state) for one in orphan.clauses] == [
            (one, "holds") for one in ("versioning", "incarnation", "age", "certificate", "audit")
        ]
        values = {one.clause: one.found for one in orphan.clauses}
        assert values["age"] == "2.0 days old; the retry horizon is 0.1 hours"
        assert values["certificate"].startswith(f"audit {case.plan.audit_id} began 2026-")
        assert values["audit"] == f"no record named it in audit {case.plan.audit_id}"
        old = next(one for one in whole.candidates if one.superseded)
        assert [one.clause for one in old.clauses] == ["versioning", "incarnation", "age"]


@in_a_loop
async def test_a_search_finds_candidates_by_the_first_digits() -> None:
    async with planned() as case:
        wanted = case.orphans[3]
        assert [one.sha256 for one in (await case.page(prefix=wanted)).candidates] == [wanted]
        prefix = wanted[:2]
        matching = sorted(one for one in (*case.orphans, case.superseded) if one.startswith(prefix))
        found = await case.page(prefix=prefix)
        assert [one.sha256 for one in found.candidates] == matching
        assert (await case.page(prefix=prefix, after=len(matching))).candidates == ()
        for bad in ("a", "XY", "0" * 65, wanted.upper(), "ab\n", "é0"):
            with pytest.raises(BadUsage, match="hex digits"):
                await case.page(prefix=bad)


@in_a_loop
async def test_one_candidate_shows_what_its_run_read() -> None:
    async with planned() as case:
        orphan = case.orphans[0]
        before = await case.detail(orphan)
        (candidate,) = before.candidates
        assert [one.clause for one in candidate.clauses if one.state == "not_read"] == [
            "references", "envelope", "listed",
        ]  # fmt: skip
        assert (before.proofs, before.kept, before.reason) == ((), (), "")
        await case.world.put_manifest(case.world.identity(303), case.orphans[1])
        await case.world.run(case.plan)
        proofs = {one: (await case.detail(one)).proofs for one in case.orphans}
        verdicts = sorted(proof.verdict for (proof,) in proofs.values())
        assert verdicts == ["keep"] + ["may_go"] * 9
        (gone,) = (await case.detail(case.orphans[0])).proofs
        assert gone.proof_key.startswith(f"gc/v1/proofs/sha256={orphan[0]}/{case.plan.plan_id}-")
        assert {one.state for one in gone.clauses} == {"holds"}
        shown = {one.clause: one.found for one in gone.clauses}
        assert shown["references"] == "0 reverse references"
        assert "absent" in shown["envelope"]
        assert shown["listed"] == "listed as the current version"
        (kept,) = (await case.detail(case.orphans[1])).proofs
        states = {one.clause: one.state for one in kept.clauses}
        assert (states["audit"], states["references"]) == ("holds", "keeps")
        assert (states["envelope"], states["listed"]) == ("not_read", "not_read")
        (old,) = (await case.detail(case.superseded)).proofs
        assert [one.clause for one in old.clauses][-2:] == ["noncurrent", "current"]


@in_a_loop
async def test_a_blob_that_the_plan_keeps_is_shown_with_the_clause() -> None:
    async with planned() as case:
        named = await case.detail(case.named)
        assert (named.candidates, named.reason) == (
            (), "the plan does not name it: each version in the audit is kept",
        )  # fmt: skip
        (kept,) = named.kept
        assert (kept.finding.clause, kept.finding.state) == ("audit", "keeps")
        assert "a record named it" in kept.finding.found
        (young,) = (await case.detail(case.young)).kept
        assert young.finding.clause == "age"
        assert young.finding.found.startswith("younger than the retry horizon: 0.0 hours old")
        absent = await case.detail(digest_of(b"never stored"))
        assert (absent.kept, "did not list" in absent.reason) == ((), True)


@in_a_loop
async def test_without_the_evidence_of_the_audit_the_reason_says_so() -> None:
    async with planned() as case:
        for key in [one for one in case.store.versions if one.startswith("gc/v1/evidence/")]:
            case.store.remove_key(key)
        found = await case.detail(case.named)
        assert (found.kept, "removed by rule" in found.reason) == ((), True)
        assert (await case.detail(case.orphans[0])).candidates
        case.store.remove_key(certificate_key(case.plan.audit_id))
        assert "removed by rule" in (await case.detail(case.named)).reason


@in_a_loop
async def test_damaged_missing_and_newer_files_are_named() -> None:
    async with planned() as case:
        file = next(one for one in case.plan.candidates if one.rows > 1)
        at = next(n for n, one in enumerate(case.plan.candidates) if one is file)
        first = sum(one.rows for one in case.plan.candidates[:at])
        good = case.store.versions[file.key][0].body

        async def problem() -> str:
            with pytest.raises(InvalidRecord) as caught:
                await case.page(after=first)
            assert caught.value.key == file.key
            return caught.value.reason

        other = encode_table(pa.table({"later": [1]}))
        for change, reason in (
            (lambda body: b"not parquet", "damaged"),
            (lambda body: b"", "empty"),
            (lambda body: body[: len(body) // 2], "damaged"),
            (flip_digest, "damaged"),
            (lambda body: body[:-8] + b"\xff\xff\xff\x7fPAR1", "damaged"),
            (lambda body: other, "wrong columns, columns=['later']"),
            (lambda body: encode_table(CANDIDATES.empty_table()), "rows=0"),
        ):
            case.damage(file.key, change)
            assert reason in await problem()
            case.damage(file.key, lambda body: good)
        case.store.remove_key(file.key)
        assert "make a new plan" in await problem()


@in_a_loop
async def test_a_damaged_newer_or_missing_plan_is_named() -> None:
    async with planned() as case:
        key = plan_key(case.plan.plan_id)
        good = case.store.versions[key][0].body
        case.damage(key, lambda body: body.replace(b"sluice.gc_plan.v1", b"sluice.gc_plan.v2"))
        with pytest.raises(InvalidRecord, match="newer version of sluice made it"):
            await case.page()
        for bad in (b"", b"\xff", b"[]", b"{}", good[:-9]):
            case.damage(key, lambda _, bad=bad: bad)  # type: ignore[misc]
            with pytest.raises(InvalidRecord):
                await case.page()
        case.damage(key, lambda _: sign_plan(replace(case.plan, plan_id=UNKNOWN_PLAN), KEY))
        with pytest.raises(InvalidRecord, match="another plan"):
            await case.page()
        edited = good.replace(b'"retry_horizon_s":300', b'"retry_horizon_s":301')
        case.damage(key, lambda _: edited)
        with pytest.raises(GcRefused, match="edited"):
            await read_candidates(case.store, case.plan.plan_id, trusted=KEYS.trusted)
        case.damage(key, lambda _: good)
        checked = await read_candidates(case.store, case.plan.plan_id, trusted=KEYS.trusted)
        assert checked is not None
        assert checked.signature_checked
        case.store.remove_key(key)
        assert await read_candidates(case.store, case.plan.plan_id) is None
        assert await read_candidate(case.store, case.plan.plan_id, case.named) is None
        for bad_id in ("", "../x", "01ARZ3NDEKTSV4RRFFQ69G5FA"):
            with pytest.raises(BadUsage):
                await read_candidates(case.store, bad_id)


def flip_digest(body: bytes) -> bytes:
    """Change the last bit of the last digest; only the checksum of its page shows it."""
    digests = pq.ParquetFile(pa.BufferReader(body)).metadata.row_group(0).column(0)
    at = digests.data_page_offset + digests.total_compressed_size - 1
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


class CountingStore(VersionedStore):
    """Counts the bytes that are read."""

    bytes_read = 0

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        found = await super().get(key, first=first, last=last)
        self.bytes_read += len(getattr(found, "body", b""))
        return found


def large_file(store: VersionedStore, shard: int, rows: int) -> EvidenceFile:
    """Write candidates of one of 16 shards, in the order of their digests."""
    place = split_shards(16)[shard]
    random = np.random.default_rng(shard).integers(0, 256, (rows, 32), np.uint8)
    random[:, 0] = place.first + random[:, 0] % 16
    digests = sorted(one.tobytes() for one in random)

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), rows)

    columns = {
        "sha256": pa.array(digests, pa.binary(32)),
        "incarnation": pa.array([f"v{at:030d}" for at in range(rows)]),
        "last_modified_ns": same(START_NS - 60 * DAY_S * NS_PER_S, pa.int64()),
        "size_bytes": pa.array(range(rows), pa.int64()),
        "superseded": same(False, pa.bool_()),
        "versioning_enabled": same(True, pa.bool_()),
        "now_ns": same(START_NS, pa.int64()),
        "retry_horizon_ns": same(300 * NS_PER_S, pa.int64()),
        "audit_id": same("A", pa.string()),
        "audit_started_at_ns": same(START_NS - DAY_S * NS_PER_S, pa.int64()),
        "named_in_audit": same(False, pa.bool_()),
    }
    body = encode_table(pa.table(columns, schema=CANDIDATES))
    key = ObjectKey(f"gc/v1/plans/{UNKNOWN_PLAN}/candidates/{place.name}.parquet")
    store.put(key, body)
    return EvidenceFile(
        kind="candidates", place=place.name, key=key, sha256=digest_of(body),
        size_bytes=len(body), rows=rows,
    )  # fmt: skip


@pytest.mark.long
@in_a_loop
async def test_a_page_of_a_million_candidates_reads_two_row_groups() -> None:
    async with memory_world() as (world, _):
        store = CountingStore(clock=world.clock)
    files = tuple([large_file(store, shard, 62_500) for shard in range(16)])
    none = VersionTally()
    plan = Plan(
        plan_id=UNKNOWN_PLAN, authority_id="A1", retry_horizon_s=300, audit_id="A",
        certificate_sha256=digest_of(b""), made_at_unix_ns=START_NS, candidates=files,
        summary=PlanSummary(
            blobs=none, orphans=none, superseded=none, kept={}, by_size=(), by_age=()
        ),
    )  # fmt: skip
    store.put(plan_key(UNKNOWN_PLAN), sign_plan(plan, KEY))
    whole = sum(one.size_bytes for one in files)
    group = whole * CANDIDATES_PER_GROUP / 1_000_000
    seen: set[str] = set()
    for after in (0, CANDIDATES_PER_GROUP - 100, 62_400, 500_000, 999_800):
        store.bytes_read, store.requests = 0, {}
        page = await read_candidates(store, UNKNOWN_PLAN, after=after, limit=200)
        assert page is not None
        assert (len(page.candidates), page.total) == (200, 1_000_000)
        assert page.more == (after != 999_800)
        seen.update(one.sha256 for one in page.candidates)
        assert store.bytes_read < 2.5 * group < whole / 20
        assert store.requests["get"] <= 1 + 2 * 2
    assert len(seen) == 1000
    for sha256 in sorted(seen)[::300]:
        store.bytes_read = 0
        found = await read_candidates(store, UNKNOWN_PLAN, prefix=sha256)
        assert found is not None
        assert [one.sha256 for one in found.candidates] == [sha256]
        assert store.bytes_read < 1.5 * group


@in_a_loop
async def test_a_search_finds_rows_of_a_file_in_another_order() -> None:
    """The inventory of a store may list blobs in any order."""
    async with memory_world() as (_, store):
        file = large_file(store, 0, 40_000)
        table = pq.read_table(pa.BufferReader(store.versions[file.key][0].body))
        order = np.random.default_rng(1).permutation(40_000)
        body = encode_table(table.take(pa.array(order)))
        store.put(file.key, body)
        none = VersionTally()
        plan = Plan(
            plan_id=UNKNOWN_PLAN, authority_id="A1", retry_horizon_s=300, audit_id="A",
            certificate_sha256=digest_of(b""), made_at_unix_ns=START_NS, candidates=(file,),
            summary=PlanSummary(
                blobs=none, orphans=none, superseded=none, kept={}, by_size=(), by_age=()
            ),
        )  # fmt: skip
        store.put(plan_key(UNKNOWN_PLAN), sign_plan(plan, KEY))
        wanted = table["sha256"][int(order[30_000])].as_py().hex()
        page = await read_candidates(store, UNKNOWN_PLAN, prefix=wanted)
        assert page is not None
        assert [one.sha256 for one in page.candidates] == [wanted]


def test_the_clauses_of_a_view_are_those_of_a_plan() -> None:
    assert tuple(PLANNED.values()) == PLAN_CLAUSES
    assert tuple(one.clause for one in map(_kept, PLAN_CLAUSES)) == tuple(PLANNED)


def _kept(check: ClauseCheck) -> MustKeep:
    """Return the verdict of a clause on evidence that was not read and a version `null`."""
    candidate = Candidate(
        key=ObjectKey("k"), digest=digest_of(b""), incarnation=ObjectVersion("null"),
        last_modified_ns=UnixNs(0), size_bytes=0,
    )  # fmt: skip
    found = check(Evidence(candidate=candidate, retry_horizon_ns=0))
    assert found is not None
    return found
