"""The records of the tasks in the store: read them, and change one by compare-and-swap."""

import random  # noqa: TID251 - the type of the source of jitter inside the backoff
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice_maintain.lease_rules import RecordWriter
from sluice_maintain.tasks import TaskName
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.maintenance import TaskRecord, decode_task_record, task_record_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied, Found, ReplaceOutcome, Unknown
from sluice_protocol.units import ETag, UnixNs
from sluice_store.port import ObjectStore, run_together
from sluice_store.retry import Backoff, RetryBudget, RetrySettings

_SWAPS: Final = RetrySettings(tries_max=8, total_s=20.0, backoff_s=0.05, backoff_max_s=2.0)

RecordRule = Callable[[TaskRecord | None, int, RecordWriter], TaskRecord | None]
"""Returns the new record from the current one, the store's clock and the writer, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """What a read of a task's record found; no record and no ETag before its first run.

    `date_ns` is the store's clock in the response; `asked_ns` is the monotonic clock of this
    machine before the request.
    """

    record: TaskRecord | None
    etag: ETag | None
    date_ns: UnixNs
    asked_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTask:
    """A record as it was written, and the monotonic time before the read that it is based on."""

    record: TaskRecord
    asked_ns: int


class TaskStore:
    """The records of all tasks, for one process."""

    def __init__(self, store: ObjectStore, clock: Clock, ids: IdSource, owner: str) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self.owner = owner

    async def read(self, task: str) -> StoredTask:
        """Read the record of a task."""
        key = task_record_key(task)
        asked_ns = self._clock.monotonic_ns()
        match await self._store.get(key):
            case Found(info=info, body=body):
                record = decode_task_record(key, body)
                return StoredTask(
                    record=record, etag=info.etag, date_ns=info.date_ns, asked_ns=asked_ns
                )
            case missing:
                return StoredTask(
                    record=None, etag=None, date_ns=missing.date_ns, asked_ns=asked_ns
                )

    async def read_every(self) -> tuple[dict[TaskName, TaskRecord | None], UnixNs]:
        """Read the record of each task; return also the latest time of the store's clock."""
        stored = await run_together(*(self.read(task) for task in TaskName))
        records = {task: one.record for task, one in zip(TaskName, stored, strict=True)}
        return records, max(one.date_ns for one in stored)

    async def change(self, task: str, rule: RecordRule) -> ChangedTask | None:
        """Apply a rule to a record and write the result; return None if the rule returns None.

        A swap whose outcome is unknown is settled by reading: the record then has a nonce of this
        call, or another writer's.
        """
        rng = random.Random(self._clock.now_ns())  # noqa: S311 - jitter, not a secret
        backoff = Backoff(clock=self._clock, rng=rng, settings=_SWAPS)
        budget = RetryBudget("replace", task_record_key(task), backoff)
        written: dict[str, ChangedTask] = {}
        while True:
            stored = await self.read(task)
            if stored.record is not None and stored.record.nonce in written:
                return written[stored.record.nonce]
            writer = RecordWriter(owner=self.owner, nonce=self._ids.ulid())
            record = rule(stored.record, stored.date_ns, writer)
            if record is None:
                return None
            change = ChangedTask(record=record, asked_ns=stored.asked_ns)
            outcome = await self._swap(record, stored.etag)
            if isinstance(outcome, Applied):
                return change
            if isinstance(outcome, Unknown):
                written[record.nonce] = change
            await budget.wait_or_raise()

    async def _swap(self, record: TaskRecord, etag: ETag | None) -> ReplaceOutcome | object:
        key, body = task_record_key(record.task), encode_record(record)
        if etag is None:
            return await self._store.create(key, body)
        return await self._store.replace(key, body, if_match=etag)
