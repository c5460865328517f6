"""The ingest job: a Structured Streaming query that moves batches from the queue into the lake.

Records never pass through the JVM. The query delivers descriptors. For each micro-batch the driver
plans, the executors write, and `microbatch` commits (ADR 30 and 31).

The job also adds the columns of new promotions to the record tables. It compares the promotions of
the store with what it has added when it starts, and then once a minute: one listing. Micro-batches
read nothing of it. Each goes by the state of its tables, so a column is filled from the first
micro-batch that opens a table with it. A micro-batch that is being written at that moment meets the
commit of the new column, and is written again.
"""

import hashlib
import random  # noqa: TID251 - the source of jitter is made here
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from sluice_lake.blobs import RejectedBlob, fetch_frame
from sluice_lake.delta import find_table
from sluice_lake.errors import CommitConflict, TableRefused
from sluice_lake.open_dead_letters import read_open_dead_letters
from sluice_lake.promoted import add_promoted
from sluice_lake.tables import DEAD_LETTERS, Table
from sluice_protocol.authority import Authority
from sluice_protocol.clock import Clock
from sluice_protocol.errors import BadUsage, Fenced, InvalidRecord, OutcomeUnknown, StoreError
from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.identity import Identity
from sluice_protocol.keys import INGEST_QUEUE, accepted_key
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.outcomes import Found, ObjectInfo
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey
from sluice_queue.errors import LayoutChanged
from sluice_queue.producer import Producer
from sluice_queue.worklists import PendingBatch, by_lane
from sluice_spark.failpoints import read_failpoint
from sluice_spark.ingest.descriptors import decode_descriptors
from sluice_spark.ingest.fenced_consumers import FencedConsumers
from sluice_spark.ingest.microbatch import Ingester, IngestTotals, open_snapshot
from sluice_spark.ingest.supervision import QueryState, QuerySupervisor, RestartSettings
from sluice_spark.ingest.write_tasks import plan_tasks, run_tasks
from sluice_spark.jvm import jvm_process, stop_session
from sluice_spark.session import (
    S3A_PACKAGE,
    Session,
    SessionSettings,
    check_startable,
    checkpoint_folder,
    open_session,
    read_hadoop_version,
)
from sluice_spark.settings import IngestSettings
from sluice_spark.written_files import TaskResult
from sluice_store import read_authority
from sluice_store.port import ObjectStore
from sluice_store.stored_promotions import StoredPromotions, read_promotions

_LATER: Final = (StoreError, LayoutChanged)
INTERVAL_S: Final = 60.0
PAGE: Final = 100
"""Dead letters that one check reads without finding a restored one."""
_SENT_S: Final = 600.0
"""Time for which a batch that was enqueued again is not enqueued again."""


@dataclass(slots=True, kw_only=True)
class Redelivery:
    """Enqueues dead letters again whose blobs were restored, for one ingest job.

    The job compares the open dead letters with the store when it starts, and then once a minute. A
    repeated entry is harmless, because the ledger drops a batch that it contains. Each check takes
    the letters in rotation and reads at most `PAGE` that were not restored, so its cost is bounded:
    a GET of the manifest and a HEAD of the blob for each. A blob with the same tag as before is not
    read again.
    """

    store_url: str
    consumers: FencedConsumers
    clock: Clock
    open_letters: int = 0
    redelivered: int = 0
    _checked_ns: int | None = None
    _after: int = 0
    _rejected: dict[Identity, ETag] = field(default_factory=dict)
    _sent: dict[Identity, int] = field(default_factory=dict)

    def check_if_due(self) -> None:
        """Check if the interval is over; a failed check is repeated after the next interval."""
        now_ns = self.clock.monotonic_ns()
        if self._checked_ns is None or now_ns - self._checked_ns >= INTERVAL_S * NS_PER_S:
            self._checked_ns = now_ns
            self.check()

    def count_open(self) -> int:
        """Return how many dead letters are open now, or at the last check if that is unknown."""
        try:
            self.open_letters = len(read_open_dead_letters(self.store_url))
        except (StoreError, TableRefused) as error:
            _log.info("dead_letters_not_checked", reason=str(error))
        return self.open_letters

    def check(self) -> None:
        """Enqueue the dead letters whose blobs were restored."""
        try:
            letters = list(read_open_dead_letters(self.store_url))
            self.open_letters = len(letters)
            now_ns = self.clock.monotonic_ns()
            self._sent = {
                who: at_ns
                for who, at_ns in self._sent.items()
                if now_ns - at_ns < _SENT_S * NS_PER_S
            }
            waiting = [who for who in letters if who not in self._sent]
            self._rejected = {who: self._rejected[who] for who in waiting if who in self._rejected}
            if waiting:
                self.consumers.run(lambda store: self._redeliver(store, waiting))
        except (*_LATER, OutcomeUnknown, TableRefused, InvalidRecord, TimeoutError) as error:
            _log.info("dead_letters_not_checked", reason=str(error))

    async def _redeliver(self, store: ObjectStore, waiting: Sequence[Identity]) -> None:
        start = self._after % len(waiting)
        turn = [*waiting[start:], *waiting[:start]]
        authority = await read_authority(store)
        for first in range(0, len(turn), PAGE):
            page = turn[first : first + PAGE]
            restored = [one for who in page if (one := await self._restored(store, who))]
            self._after = start + first + len(page)
            await self._enqueue(store, restored, authority)
            if not restored:
                return

    async def _restored(self, store: ObjectStore, who: Identity) -> AcceptedManifest | None:
        """Return the manifest of a batch if its blob is what the manifest names."""
        key = accepted_key(who)
        found = await store.get(key)
        if not isinstance(found, Found):
            return None
        manifest = decode_record(key, found.body, AcceptedManifest)
        head = await store.head(ObjectKey(manifest.raw_blob_key))
        if not isinstance(head, ObjectInfo) or self._rejected.get(who) == head.etag:
            return None
        if isinstance(await fetch_frame((store,), manifest), RejectedBlob):
            self._rejected[who] = head.etag
            return None
        return manifest

    async def _enqueue(
        self, store: ObjectStore, restored: Sequence[AcceptedManifest], authority: Authority
    ) -> None:
        for lane, batches in by_lane(restored, authority.lanes).items():
            async with Producer.open(
                store,
                queue=INGEST_QUEUE,
                lane=lane,
                layout=authority.layout,
                after=authority.after_sequence,
            ) as producer:
                await (await producer.produce(batches)).result()
            self.redelivered += len(batches)
            now_ns = self.clock.monotonic_ns()
            self._sent |= {one.identity: now_ns for one in batches}
            _log.info("dead_letters_enqueued", lane=lane, batches=len(batches))


_COLUMNS_INTERVAL_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class PromotedColumns:
    """The promoted columns of one store, for one ingest job."""

    store_url: str
    consumers: FencedConsumers
    clock: Clock
    _checked_ns: int | None = None
    _known: StoredPromotions | None = field(default=None)

    def add_if_due(self) -> None:
        """Add columns if the interval is over; what fails is repeated after the next interval.

        A column that is missing changes no answer, so nothing here stops the job.
        """
        now_ns = self.clock.monotonic_ns()
        if (
            self._checked_ns is not None
            and now_ns - self._checked_ns < _COLUMNS_INTERVAL_S * NS_PER_S
        ):
            return
        self._checked_ns = now_ns
        try:
            found = self.consumers.run(lambda store: read_promotions(store, self._known))
            if found is self._known:
                return
            for kind in KINDS:
                add_promoted(self.store_url, kind, found.records)
        except (StoreError, OutcomeUnknown, CommitConflict, TimeoutError) as error:
            _log.info("columns_not_checked", reason=str(error))
            return
        except (TableRefused, InvalidRecord) as error:
            _log.warning("column_not_added", reason=str(error))
            return
        for unreadable in found.unreadable:
            _log.warning("column_not_added", reason=str(unreadable))
        self._known = found


_MICRO_BATCH_WAIT_S: Final = 60.0
"""Time that a running micro-batch has to end after its query has ended."""
_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PLAIN_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Writes the files of a checkpoint in a directory without searching for symbolic links.

Spark's default manager starts `readlink` eight times for each file, and a micro-batch has two.
"""
_S3A_MISSING: Final = re.compile(r"Class org\.apache\.hadoop\.fs\.s3a\.\w+ not found")
"""Part of Spark's error if there is no class for `s3a://`."""

_log = structlog.get_logger("sluice.ingest")


@dataclass(slots=True)
class MicroBatchSink:
    """The callback for each micro-batch; it keeps the original error, which Spark would wrap."""

    ingester: Ingester
    failure: BaseException | None = field(default=None)
    _running: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, frame: Any, batch_id: int) -> None:  # noqa: ANN401, ARG002 - the signature of `foreachBatch`
        """Ingest the rows of one micro-batch."""
        with self._running:
            try:
                self.ingester.ingest(decode_descriptors(frame.toArrow()))
            except BaseException as error:
                self.failure = error
                raise

    def wait(self) -> None:
        """Wait until no micro-batch is running.

        pyspark runs it in a daemon thread, which would crash the process if the interpreter ended
        during a commit.
        """
        if self._running.acquire(timeout=_MICRO_BATCH_WAIT_S):
            self._running.release()

    def take_failure(self) -> BaseException | None:
        """Return the error of the last micro-batch and forget it."""
        failure, self.failure = self.failure, None
        return failure


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """The folder of this job's checkpoints; only the newest one exists, until the job ends.

    A query starts after the entries that are acknowledged, and those are in the tables. An older
    checkpoint could only contradict them: it may be damaged, or come from a queue that was rebuilt.
    """

    session: Session
    path: str

    def begin(self) -> str:
        """Remove earlier checkpoints, and return the folder of a new one."""
        self.remove()
        return f"{self.path}/{SystemIds().ulid()}"

    def remove(self) -> None:
        """Remove every checkpoint of the job, unless the JVM has ended: the next job does it."""
        process = jvm_process(self.session)
        if process is not None and process.poll() is not None:
            return
        context = self.session.sparkContext
        # Hadoop's file systems have no Python API.
        path = context._jvm.org.apache.hadoop.fs.Path(self.path)  # noqa: SLF001
        path.getFileSystem(context._jsc.hadoopConfiguration()).delete(path, True)  # noqa: FBT003, SLF001


def run_ingest(
    store_url: str,
    settings: IngestSettings,
    *,
    spark: Session | None = None,
    report: Callable[[QueryState, IngestTotals], None] = lambda *_: None,
) -> IngestTotals:
    """Run the job until it is stopped or, with `once`, until the initial backlog is in the lake.

    Without a session, one is started and stopped. `report` is called every few seconds. `Fenced`
    means that a newer job has acquired the queue; this job has changed nothing since.
    """
    if spark is None:
        check_startable()  # a job that cannot start must not fence the running one
    with FencedConsumers(store_url, INGEST_QUEUE) as consumers:
        # Tables are created after the store was read: one that is moved away has no settings.
        consumers.open(lambda lanes: open_snapshot(store_url).committed_through(lanes))
        find_table(store_url, DEAD_LETTERS, for_writing=True)  # refuse it now, not at its first use
        session = spark or _session(store_url, settings)
        try:
            return _run(session, store_url, settings, consumers, report)
        finally:
            if spark is None:
                stop_session(session)


def _session(store_url: str, settings: IngestSettings) -> Session:
    on_s3 = (settings.checkpoint or "").startswith("s3a://")
    return open_session(SessionSettings(), delta=False, s3a=store_url if on_s3 else None)


def _run(
    session: Session,
    store_url: str,
    settings: IngestSettings,
    consumers: FencedConsumers,
    report: Callable[[QueryState, IngestTotals], None],
) -> IngestTotals:
    def write(rows: Sequence[PendingBatch], tables: Mapping[Kind, Table]) -> list[TaskResult]:
        tasks = plan_tasks(store_url, rows, session.sparkContext.defaultParallelism, tables)
        return run_tasks(session, tasks)

    ingester = Ingester(
        store_url=store_url,
        consumers=consumers,
        write=write,
        clock=SystemClock(),
        ids=SystemIds(),
        failpoint=read_failpoint(),
    )
    sink = MicroBatchSink(ingester)
    checkpoints = _checkpoints(session, store_url, settings, consumers)
    letters = Redelivery(store_url=store_url, consumers=consumers, clock=ingester.clock)
    promoted = PromotedColumns(store_url=store_url, consumers=consumers, clock=ingester.clock)

    def follow_store() -> None:
        promoted.add_if_due()
        letters.check_if_due()
        ingester.totals.dead_letters_open = letters.open_letters
        ingester.totals.redelivered = letters.redelivered

    def observe(state: QueryState) -> None:
        if not state.trouble:
            follow_store()
        report(state, ingester.totals)

    def start() -> Any:  # noqa: ANN401 - pyspark's query
        try:
            consumers.check()  # a fenced job must not remove the checkpoint of its successor
        except Fenced as fenced:
            if fenced.by_newer:
                raise
            consumers.open(lambda lanes: open_snapshot(store_url).committed_through(lanes))
            _log.info("queue_reopened", register=fenced.register)
        follow_store()
        return _start_query(session, store_url, settings, checkpoints, sink)

    supervisor = QuerySupervisor(
        session=session,
        start=start,
        take_failure=sink.take_failure,
        rounds=lambda: ingester.totals.rounds,
        settings=RestartSettings(restarts_max=settings.restarts_max, continuous=not settings.once),
        store_answers=consumers.store_answers,
        report=observe,
        stall_timeout_s=settings.stall_timeout_s,
        clock=ingester.clock,
        rng=random.Random(ingester.clock.now_ns()),  # noqa: S311 - jitter, not a secret
    )
    try:
        supervisor.run()
        checkpoints.remove()
        ingester.totals.dead_letters_open = letters.count_open()
    finally:
        sink.wait()
    return ingester.totals


def _start_query(
    session: Session,
    store_url: str,
    settings: IngestSettings,
    checkpoints: CheckpointFolder,
    sink: MicroBatchSink,
) -> Any:  # noqa: ANN401
    try:
        return _build_query(session, store_url, settings, checkpoints, sink)
    except Exception as error:
        if _S3A_MISSING.search(str(error)):
            raise BadUsage(
                f"cannot open checkpoint: Spark has no S3 client; run spark-submit with "
                f"--packages {S3A_PACKAGE}:{read_hadoop_version()}, "
                f"checkpoint=`{settings.checkpoint}`"
            ) from error
        raise


def _build_query(
    session: Session,
    store_url: str,
    settings: IngestSettings,
    checkpoints: CheckpointFolder,
    sink: MicroBatchSink,
) -> Any:  # noqa: ANN401
    checkpoint = checkpoints.begin()
    stream = (
        session.readStream.format("sluice")
        .option("store", store_url)
        .option("queue", INGEST_QUEUE)
        .option("maxBytesPerTrigger", settings.max_bytes_per_trigger)
        .option("maxBatchesPerTrigger", settings.max_batches_per_trigger)
        .load()
    )
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_s} seconds").start()


def _checkpoints(
    session: Session, store_url: str, settings: IngestSettings, consumers: FencedConsumers
) -> CheckpointFolder:
    folder = checkpoint_folder(settings.checkpoint)
    if folder.startswith("file:") and session.conf.get(_CHECKPOINT_FILES, None) is None:
        session.conf.set(_CHECKPOINT_FILES, _PLAIN_FILES)
    # Jobs for several stores, or for copies of one, may use the same folder.
    store = hashlib.sha256(f"{store_url} {consumers.authority_id}".encode()).hexdigest()[:16]
    return CheckpointFolder(session, f"{folder.rstrip('/')}/ingest-{store}")
