"""The ingest job: a Structured Streaming query that moves batches from the queue into the lake.

Records never pass through the JVM. The query delivers descriptors. For each micro-batch the driver
plans, the executors write, and `microbatch` commits (ADR 0050, ADR 0052).
"""

import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.keys import INGEST_QUEUE
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_queue.pending import PendingBatch
from sluice_spark.descriptors import decode_descriptors
from sluice_spark.errors import JobFailed, find_cause
from sluice_spark.failpoints import read_failpoint
from sluice_spark.fenced_consumers import FencedConsumers
from sluice_spark.microbatch import Ingester, IngestTotals, open_snapshot
from sluice_spark.session import (
    S3A_PACKAGE,
    Session,
    SessionSettings,
    checkpoint_folder,
    open_session,
    read_hadoop_version,
)
from sluice_spark.settings import IngestSettings
from sluice_spark.write_tasks import plan_tasks, run_tasks
from sluice_spark.written_files import TaskResult

_STOP_POLL_S: Final = 0.5
"""Interval at which the job checks for a stop signal."""
_S3A_MISSING: Final = re.compile(r"Class org\.apache\.hadoop\.fs\.s3a\.\w+ not found")
"""Part of Spark's error if there is no class for `s3a://`."""


@dataclass(slots=True)
class MicroBatchSink:
    """The callback for each micro-batch; it keeps the original error, which Spark would wrap."""

    ingester: Ingester
    failure: BaseException | None = field(default=None)

    def __call__(self, frame: Any, batch_id: int) -> None:  # noqa: ANN401, ARG002 - the signature of `foreachBatch`
        """Ingest the rows of one micro-batch."""
        try:
            self.ingester.ingest(decode_descriptors(frame.toArrow()))
        except BaseException as error:
            self.failure = error
            raise


def run_ingest(
    store_url: str, settings: IngestSettings, *, spark: Session | None = None
) -> IngestTotals:
    """Run the job until it is stopped or, with `once`, until the initial backlog is in the lake.

    Args:
        store_url: The store of the queue and of the lake.
        settings: The job's settings.
        spark: A running session; without it, one is started and stopped.

    Raises:
        Fenced: A newer job has acquired the queue; this job has changed nothing since.
        SluiceError: The job failed.
    """
    with FencedConsumers(store_url, INGEST_QUEUE) as consumers:
        snapshot = open_snapshot(store_url)
        consumers.open(lambda lane: snapshot.positions([lane]).committed_through(lane))
        session = spark or _session(store_url, settings)
        try:
            return _run(session, store_url, settings, consumers)
        finally:
            if spark is None:
                session.stop()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set, instead of interrupting a call into Spark.

    Only the main thread can handle signals; in other threads the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _session(store_url: str, settings: IngestSettings) -> Session:
    wanted = SessionSettings(master=settings.master, driver_memory=settings.driver_memory)
    on_s3 = (settings.checkpoint or "").startswith("s3a://")
    return open_session(wanted, delta=False, s3a=store_url if on_s3 else None)


def _run(
    session: Session, store_url: str, settings: IngestSettings, consumers: FencedConsumers
) -> IngestTotals:
    def write(rows: Sequence[PendingBatch]) -> list[TaskResult]:
        tasks = plan_tasks(store_url, rows, session.sparkContext.defaultParallelism)
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
    query = _start_query(session, store_url, settings, sink)
    try:
        with stop_signals() as stop:
            while not query.awaitTermination(_STOP_POLL_S):
                if stop.is_set():
                    break
    except Exception as error:  # noqa: BLE001 - Spark raises any exception
        _raise_cause(sink.failure, error)
    finally:
        with suppress(Exception):
            query.stop()
    return ingester.totals


def _start_query(
    session: Session, store_url: str, settings: IngestSettings, sink: MicroBatchSink
) -> Any:  # noqa: ANN401
    try:
        return _build_query(session, store_url, settings, sink)
    except Exception as error:
        if _S3A_MISSING.search(str(error)):
            raise BadUsage(
                f"cannot open checkpoint: Spark has no S3 client; run spark-submit with "
                f"--packages {S3A_PACKAGE}:{read_hadoop_version()}, "
                f"checkpoint=`{settings.checkpoint}`"
            ) from error
        _raise_cause(sink.failure, error)


def _build_query(
    session: Session, store_url: str, settings: IngestSettings, sink: MicroBatchSink
) -> Any:  # noqa: ANN401
    stream = (
        session.readStream.format("sluice")
        .option("store", store_url)
        .option("queue", INGEST_QUEUE)
        .option("maxBytesPerTrigger", settings.max_bytes_per_trigger)
        .option("maxBatchesPerTrigger", settings.max_batches_per_trigger)
        .load()
    )
    checkpoint = checkpoint_folder(store_url, settings.checkpoint)
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    if settings.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.trigger_s} seconds").start()


def _raise_cause(failure: BaseException | None, error: Exception) -> NoReturn:
    """Raise the original error rather than Spark's wrapper of it."""
    if isinstance(failure, SluiceError):
        raise failure
    raise JobFailed(f"ingest stopped: {find_cause(str(failure or error))}") from error
