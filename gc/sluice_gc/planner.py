"""Makes a plan from the newest certificate: what may go, shard by shard. Deletes nothing."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from sluice_gc.certificate import Certificate, EvidenceFile
from sluice_gc.chain import Link, read_certificate, read_head
from sluice_gc.engine import Engine
from sluice_gc.errors import GcRefused, Refusal
from sluice_gc.objects import Keys, Trusted, put_table
from sluice_gc.plan import (
    Clocks,
    Plan,
    check_amount,
    check_certificate_for,
    check_clock_fall,
    check_clocks,
    check_horizon_covered,
    plan_key,
    sign_plan,
    verify_plan,
)
from sluice_gc.plan_shard import FactsSum, PlanTask, plan_shards
from sluice_gc.ranges import first_key
from sluice_gc.settings import PlanSettings
from sluice_gc.shards import split_shards
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import InvariantViolated
from sluice_protocol.keys import AUTHORITY_SETTINGS, GC_PLANS
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.units import UnixNs
from sluice_store.authority import read_authority
from sluice_store.port import ObjectStore, Versioning
from sluice_store.retry import Backoff, OtherBytes, create_once

_TASKS_PER_CORE = 8

ShardFiles = tuple[str, tuple[EvidenceFile, ...], tuple[EvidenceFile, ...]]
"""Name, files of names, files of blobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a plan or a run stands on, all of it just read and checked."""

    authority: Authority
    link: Link
    now_ns: UnixNs
    versioning: Versioning


class Planner:
    """Makes plans for one store."""

    def __init__(
        self, store: ObjectStore, engine: Engine, keys: Keys, clock: Clock, ids: IdSource
    ) -> None:
        """Takes its parts."""
        self._store = store
        self._engine = engine
        self._keys = keys
        self._clock = clock
        self._ids = ids

    async def plan(
        self,
        settings: PlanSettings,
        audit_id: str | None = None,
        inventory: pa.Table | None = None,
    ) -> Plan:
        """Makes a plan and writes it under `gc/v1/plans/`.

        Args:
            settings: What may be proposed.
            audit_id: The certificate to rest on; the newest when None.
            inventory: Rows of `BLOBS` of a verified inventory; those of the audit when None.

        Raises:
            GcRefused: A rule of safety does not hold; there is no plan.
            CertificateInvalid: The certificate was altered.
            StoreError: No answer, or a refusal.
        """
        ground = await self._read_ground(settings, audit_id)
        plan_id = self._ids.ulid()
        sums = FactsSum()
        blobs = await self._blobs(ground, plan_id, inventory)
        tasks = plan_tasks(ground, plan_id, self._engine.tasks_at_once * _TASKS_PER_CORE, blobs)
        for group in await self._engine.run(partial(plan_shards, clock=self._clock), tasks):
            for facts in group:
                sums.add(facts)
        plan = make_plan(plan_id, ground, sums)
        check_horizon_covered(plan.summary)
        check_amount(plan.summary, settings.max_delete_ratio)
        body = sign_plan(plan, self._keys.private)
        backoff = Backoff.seeded_by(self._clock)
        if isinstance(await create_once(self._store, plan_key(plan_id), body, backoff), OtherBytes):
            raise InvariantViolated(f"another plan stands under a fresh id, plan_id=`{plan_id}`")
        return plan

    async def _blobs(
        self, ground: Ground, plan_id: str, inventory: pa.Table | None
    ) -> Iterable[EvidenceFile]:
        certificate = ground.link.certificate
        if inventory is not None:
            folder = f"{GC_PLANS}{plan_id}/"
            return await put_blobs(
                self._store,
                folder,
                certificate.shards,
                inventory,
                Backoff.seeded_by(self._clock),
            )
        files = certificate.files("blobs")
        if not files:
            raise GcRefused(
                Refusal.NO_CERTIFICATE, "that audit listed no blobs: name an inventory, or list"
            )
        return files

    async def _read_ground(self, settings: PlanSettings, audit_id: str | None) -> Ground:
        authority = await read_authority(self._store)
        link = await read_link(self._store, self._keys.trusted, audit_id)
        check_certificate_for(authority, link.certificate)
        now_ns = (await self._store.head(AUTHORITY_SETTINGS)).date_ns
        clocks = Clocks(local_ns=self._clock.now_ns(), store_ns=now_ns)
        check_clocks(clocks, settings.clock_skew_s_max)
        check_clock_fall(link.certificate.finished_at_unix_ns, now_ns, authority)
        return Ground(
            authority=authority,
            link=link,
            now_ns=now_ns,
            versioning=await self._store.read_versioning(),
        )


async def read_link(store: ObjectStore, trusted: Trusted, audit_id: str | None) -> Link:
    """Gives the certificate that was asked for, or the newest.

    Raises:
        GcRefused: There is none at all.
        CertificateInvalid: It is missing or was altered.
        StoreError: No answer, or a refusal.
    """
    if audit_id is not None:
        return await read_certificate(store, audit_id, trusted)
    link = await read_head(store, trusted)
    if link is None:
        raise GcRefused(Refusal.NO_CERTIFICATE, "no certificate: run `sluice audit run` first")
    return link


async def read_plan(store: ObjectStore, trusted: Trusted, plan_id: str) -> Plan:
    """Gives a plan, checked.

    Raises:
        GcRefused: It is missing, was edited, or is not signed by a trusted key.
        StoreError: No answer, or a refusal.
    """
    read = await store.get(plan_key(plan_id))
    if not isinstance(read, Found):
        raise GcRefused(Refusal.PLAN_INVALID, f"there is no plan {plan_id}")
    return verify_plan(plan_id, read.body, trusted)


async def newest_plan_id(store: ObjectStore) -> str:
    """Gives the id of the newest plan.

    Raises:
        GcRefused: There is none.
        StoreError: No answer, or a refusal.
    """
    plan_ids = await read_plan_ids(store)
    if not plan_ids:
        raise GcRefused(Refusal.PLAN_INVALID, "there is no plan: run `sluice gc plan` first")
    return plan_ids[-1]


async def read_plan_ids(store: ObjectStore) -> list[str]:
    """Gives the ids of all complete plans, oldest first; a plan has its record last.

    Raises:
        StoreError: No answer, or a refusal.
    """
    plan_ids: list[str] = []
    key = await first_key(store, GC_PLANS, "")
    while key is not None:
        plan_id = key.removeprefix(GC_PLANS).partition("/")[0]
        if not isinstance(await store.head(plan_key(plan_id)), NotFound):
            plan_ids.append(plan_id)
        key = await first_key(store, GC_PLANS, f"{GC_PLANS}{plan_id}/~")
    return plan_ids


def plan_tasks(
    ground: Ground, plan_id: str, tasks_max: int, blobs: Iterable[EvidenceFile]
) -> list[PlanTask]:
    """Deals the certificate's shards out to tasks; a task takes its shards one at a time."""
    certificate = ground.link.certificate
    shards = shard_files(certificate, blobs)
    count = max(1, min(tasks_max, len(shards)))
    return [
        PlanTask(
            folder=f"{GC_PLANS}{plan_id}/",
            shards=tuple(shards[at::count]),
            now_ns=ground.now_ns,
            retry_horizon_ns=ground.authority.retry_horizon_ns,
            versioning_enabled=ground.versioning is Versioning.ENABLED,
            audit_id=certificate.audit_id,
            audit_started_at_ns=certificate.started_at_unix_ns,
        )
        for at in range(count)
    ]


def names_by_shard(certificate: Certificate) -> dict[str, tuple[EvidenceFile, ...]]:
    """Gives the files of names of each shard.

    Raises:
        GcRefused: A shard has not exactly one: without its names every blob would be an orphan.
    """
    return _by_shard(certificate.shards, certificate.files("names"))


def _by_shard(shards: int, files: Iterable[EvidenceFile]) -> dict[str, tuple[EvidenceFile, ...]]:
    found: dict[str, list[EvidenceFile]] = defaultdict(list)
    for file in files:
        found[file.place].append(file)
    places = [shard.name for shard in split_shards(shards)]
    if any(len(found[one]) != 1 for one in places):
        raise GcRefused(Refusal.CERTIFICATE_INVALID, "the evidence of a shard is missing")
    return {place: tuple(found[place]) for place in places}


def shard_files(certificate: Certificate, blobs: Iterable[EvidenceFile]) -> list[ShardFiles]:
    """Gives name, files of names and files of blobs of each shard.

    Raises:
        GcRefused: A shard has not one of each.
    """
    names = names_by_shard(certificate)
    listed = _by_shard(certificate.shards, blobs)
    return [(place, names[place], listed[place]) for place in names]


async def put_blobs(
    store: ObjectStore, folder: str, shards: int, blobs: pa.Table, backoff: Backoff
) -> list[EvidenceFile]:
    """Writes rows of `BLOBS` that came from elsewhere, shard by shard.

    Raises:
        OutcomeUnknown: Nobody knows whether a write landed; call again.
        StoreError: The store refused.
    """
    first = np.array([one[0] for one in blobs["sha256"].to_pylist()], np.uint16)
    return [
        await put_table(
            store,
            folder,
            "blobs",
            shard.name,
            blobs.filter(pa.array((first >= shard.first) & (first < shard.end))),
            backoff=backoff,
        )
        for shard in split_shards(shards)
    ]


def make_plan(plan_id: str, ground: Ground, sums: FactsSum) -> Plan:
    """Gives the record of a plan."""
    return Plan(
        plan_id=plan_id,
        authority_id=ground.authority.authority_id,
        retry_horizon_s=ground.authority.retry_horizon_s,
        audit_id=ground.link.certificate.audit_id,
        certificate_sha256=ground.link.sha256,
        made_at_unix_ns=ground.now_ns,
        summary=sums.summary(),
        candidates=tuple(sorted(sums.files, key=lambda one: one.place)),
    )
