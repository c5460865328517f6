"""After an erasure has ended, no object of the store contains what was erased.

A canary is in a message, in an attribute with a column, in the label of a metric, in a span and in
an opaque entry. Every object is decoded and searched for it: blobs and their noncurrent versions,
data files, logs and checkpoints of tables, rollups, indexes, queues, and the trash.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builders import conflict_manifest, make_identity, manifest_of
from support.canary_search import files_with
from support.gc_world import KEYS
from support.spark_lake import RESOURCE, T0_NS, Deployment, Sent
from support.spark_local import ingest_locally
from support.store_buckets import Bucket
from support.store_versitygw import CREDENTIALS, make_bucket, versitygw

from sluice_gc.erasure_run import ErasureRun
from sluice_gc.settings import EraseSettings
from sluice_lake.tables import METRICS
from sluice_protocol.authority import Authority
from sluice_protocol.columns import Columns
from sluice_protocol.erasure import ErasureReport, decide_erasure
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.frame import encode_frame
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.keys import (
    AUTHORITY_SETTINGS,
    blob_key,
    digest_of,
    quarantine_by_blob_key,
    quarantine_key,
    trash_key,
)
from sluice_protocol.manifests import encode_record, encode_reference
from sluice_protocol.promotions import PromotedType, Promotion
from sluice_protocol.records import (
    EntryRecord,
    LogRecord,
    MetricPoint,
    SpanRecord,
    entries_from_records,
    logs_from_records,
    metrics_from_records,
    spans_from_records,
)
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_spark.compaction.job import run_compact
from sluice_spark.erasure import ErasureLake
from sluice_spark.index import run_index
from sluice_spark.rollups.job import run_rollup
from sluice_spark.settings import CompactSettings
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.port import ObjectStore
from sluice_store.retry import Backoff
from sluice_store.stored_promotions import read_promotions, submit_promotion

HORIZON_S = 3
CANARY = "canary-7c1e"
OTHERS = 6
NOW = EraseSettings(grace_s=0, readers_hours=0)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def records(kind: Kind, seed: int, *, erased: bool) -> Columns:
    """Return records of which one is of the person, with the canary, if any is `erased`."""
    at_ns = [T0_NS + seed * 1_000_000_000 + n for n in range(4)]
    who = [
        {"user": "u-17", "note": CANARY} if erased and n == 1 else {"user": f"u-{n}"}
        for n in range(4)
    ]
    text = [f"seen {CANARY} here" if erased and n == 1 else f"line {seed} {n}" for n in range(4)]
    match kind:
        case "logs":
            return logs_from_records(
                [
                    LogRecord(ts_ns=at, body=b, attributes=a)
                    for at, b, a in zip(at_ns, text, who, strict=True)
                ]
            )
        case "metrics":
            return metrics_from_records(
                [
                    MetricPoint(ts_ns=at, name="m", value=1.5, type=0, attributes=a)
                    for at, a in zip(at_ns, who, strict=True)
                ]
            )
        case "spans":
            return spans_from_records(
                [
                    SpanRecord(
                        ts_ns=at, name="op", trace_id=f"{n:032x}", span_id=f"{n:016x}", attributes=a
                    )
                    for n, (at, a) in enumerate(zip(at_ns, who, strict=True), 1)
                ]
            )
        case "entries":
            return entries_from_records(
                [
                    EntryRecord(key=b"k", value=b.encode(), ts_ns=at)
                    for at, b in zip(at_ns, text, strict=True)
                ]
            )


def batch(kind: Kind, seed: int, *, erased: bool) -> Sent:
    agent = "gone" if erased and kind == "entries" else f"{kind}-host"
    who = make_identity(seed * 10, count=4, agent=agent)
    frame = encode_frame(
        identity=who, columns=records(kind, seed, erased=erased), resource=RESOURCE
    )
    return Sent(manifest=manifest_of(frame, at_ns=T0_NS + seed), frame=frame, rows=())


class Place:
    """A deployment with a short retry horizon, and every copy that may contain the canary."""

    def __init__(self, deployment: Deployment, spark: Any) -> None:
        self.deployment = deployment
        self.url = deployment.url
        self.spark = spark
        self.refused: list[str] = []

    async def fill(self) -> None:
        async with open_store(self.url, StoreMode.CREATE) as store:
            await create_authority(
                store,
                Authority(authority_id="A" * 26, lanes=1, retry_horizon_s=HORIZON_S, margin_s=1),
            )
            promotion = Promotion(
                kind="logs",
                source="attributes",
                key="note",
                column="attr_note",
                type=PromotedType.TEXT,
                decided_by="ann",
                decided_at_unix_ns=0,
            )
            existing = await read_promotions(store)
            await submit_promotion(store, promotion, existing, Backoff.seeded_by(SystemClock()))

    def ingest(self) -> None:
        """Ingest batches of every kind twice, so that files are merged, indexed and rolled up."""
        asyncio.run(self.fill())
        for seed in range(2):
            self.deployment.deliver([batch(kind, seed, erased=True) for kind in KINDS])
            self.deployment.deliver([batch(kind, seed + 5, erased=False) for kind in KINDS])
            ingest_locally(self.url)
            run_index(self.spark, self.url)
        run_rollup(self.spark, self.url)
        run_compact(self.spark, self.url, CompactSettings(open_partitions=True))
        run_index(self.spark, self.url)
        asyncio.run(self.leave_copies())

    async def leave_copies(self) -> None:
        """Leave a blob without a manifest, a copy in the trash, and a noncurrent version."""
        async with open_store(self.url) as store:
            orphan = batch("logs", 8, erased=True)
            await store.create(blob_key(orphan.manifest.digest), orphan.frame)
            trashed = batch("metrics", 9, erased=True)
            await store.create(trash_key(trashed.manifest.digest), trashed.frame)
            await self.refuse(store)
            again = self.deployment.sent[0]
            await store.overwrite(blob_key(again.manifest.digest), again.frame)
            now_ns = (await store.head(AUTHORITY_SETTINGS)).date_ns
            record = DiscoveryRecord(
                complete_through_unix_ns=now_ns + 10**9, listed=0, writer=SystemIds().ulid()
            )
            await store.overwrite(DISCOVERY, encode_record(record))

    async def refuse(self, store: ObjectStore) -> None:
        """Quarantine bytes with the canary under the identities of two accepted batches."""
        for kind, seed in (("logs", 0), ("spans", 5)):
            accepted = next(
                one.manifest
                for one in self.deployment.sent
                if one.manifest.kind == kind and one.manifest.seq_start == seed * 10
            )
            who = accepted.identity
            columns = records(kind, seed + 20, erased=True)
            frame = encode_frame(identity=who, columns=columns, resource=RESOURCE)
            digest = digest_of(frame)
            self.refused.append(quarantine_key(who, digest))
            conflict = conflict_manifest(
                who,
                accepted=accepted.digest,
                submitted=digest,
                at_ns=(await store.head(AUTHORITY_SETTINGS)).date_ns,
            )
            await store.create(blob_key(digest), frame)
            await store.create(quarantine_key(who, digest), encode_record(conflict))
            reference = encode_reference(quarantine_key(who, digest))
            await store.create(quarantine_by_blob_key(digest, who), reference)

    def erase(self, where: str, kinds: tuple[Kind, ...]) -> ErasureReport:
        return asyncio.run(self._erase(where, kinds))

    async def _erase(self, where: str, kinds: tuple[Kind, ...]) -> ErasureReport:
        async with open_store(self.url) as store:
            run = self.runner(store)
            now_ns = (await store.head(AUTHORITY_SETTINGS)).date_ns
            ids = SystemIds()
            decision = decide_erasure(
                where,
                kinds,
                (None, None),
                "request 17",
                erasure_id=ids.ulid(),
                delete_ids=[ids.ulid() for _ in KINDS],
                now_ns=now_ns,
                decided_by="operator:ann",
            )
            await run.decide(decision)
            report = await run.run(decision.erasure_id, NOW)
            for _ in range(4):
                if report.ended:
                    break
                await SystemClock().sleep(HORIZON_S + 2)
                report = await run.run(decision.erasure_id, NOW)
            return report

    def runner(self, store: ObjectStore) -> ErasureRun:
        lake = ErasureLake(spark=self.spark, store_url=self.url)
        return ErasureRun(store, lake, KEYS, SystemClock(), SystemIds())

    def found(self) -> list[str]:
        return files_with(self.deployment.root, CANARY)


@pytest.fixture(params=["directory", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.long])])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> Iterator[Place]:
    monkeypatch.setattr("sluice_protocol.authority.check_authority", lambda _: None)
    monkeypatch.setattr("sluice_store.authority.check_authority", lambda _: None)
    if request.param == "directory":
        yield Place(Deployment(tmp_path), spark)
        return
    for name, value in {**CREDENTIALS, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    with versitygw(tmp_path) as server:
        url = server.url("lake", "deep/prefix")
        asyncio.run(make_bucket(url))
        yield Place(Bucket(root=tmp_path, bucket_url=url), spark)


@pytest.mark.long
def test_nothing_of_what_was_erased_is_left(place: Place) -> None:
    place.ingest()
    before = place.found()
    wanted = ("raw-blobs/", "gc/v1/trash/", "lake/v1/rollups/", "rollup/v1/window=")
    wanted += tuple(f"lake/v1/{kind}/accepted_date" for kind in KINDS)
    for part in (*wanted, "logs/_delta_log/"):
        assert any(part in one for one in before), part
    rows = {kind: len(place.deployment.rows(kind)) for kind in KINDS}
    time.sleep(HORIZON_S + 2)
    signals: tuple[Kind, ...] = ("logs", "metrics", "spans")
    report = place.erase("attributes['user'] = 'u-17'", signals)
    assert report.ended, report
    assert (report.batches, report.records) == (6, 6)
    assert sorted(report.refused) == sorted(place.refused)
    report = place.erase("agent = 'gone'", ("entries",))
    assert report.ended, report
    assert place.found() == []
    left = {kind: len(place.deployment.rows(kind)) for kind in KINDS}
    assert left == {kind: count - (8 if kind == "entries" else 2) for kind, count in rows.items()}
    assert METRICS.name in left
    run_index(place.spark, place.url)
    run_rollup(place.spark, place.url)
    assert place.found() == []
