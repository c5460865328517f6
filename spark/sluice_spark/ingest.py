"""The ingest job: a Structured Streaming query over the queue's descriptors into the lake.

Records never pass through the JVM. The query brings descriptors; each micro-batch is judged on the
driver, written by the executors and committed by `microbatch` (ADR 0050, ADR 0052).
"""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from sluice_protocol.errors import BadUsage, SluiceError
from sluice_protocol.keys import INGEST_QUEUE
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_spark.descriptors import Waiting, decode_descriptors
from sluice_spark.errors import JobFailed
from sluice_spark.facts import Fact
from sluice_spark.guard import QueueGuard
from sluice_spark.microbatch import Ingester, Totals, open_snapshot
from sluice_spark.session import (
    S3A_PACKAGE,
    Session,
    SessionSettings,
    checkpoint_folder,
    open_session,
    read_hadoop_version,
)
from sluice_spark.settings import IngestSettings
from sluice_spark.tasks import plan_tasks, run_tasks
from sluice_spark.tracebacks import last_line

_LOOK_S: Final = 0.5
"""How often it looks whether it was told to stop."""
_NO_S3A: Final = "org.apache.hadoop.fs.s3a"
"""Named by what Spark raises when it has no class for `s3a://`."""


@dataclass(slots=True)
class Sink:
    """What Spark calls for each micro-batch; it keeps the error, which Spark would wrap."""

    ingester: Ingester
    failure: BaseException | None = field(default=None)

    def __call__(self, frame: Any, batch_id: int) -> None:  # noqa: ANN401, ARG002 - Spark's call
        """Ingests the rows of one micro-batch."""
        try:
            self.ingester.ingest(decode_descriptors(frame.toArrow()))
        except BaseException as error:
            self.failure = error
            raise


def run_ingest(store_url: str, settings: IngestSettings, *, spark: Session | None = None) -> Totals:
    """Runs the job until it is stopped, or, with `once`, until what waited is in the lake.

    Args:
        store_url: The store whose queue is consumed and in which the lake lies.
        settings: How.
        spark: A running session; one is started and stopped when there is none.

    Raises:
        Fenced: A newer job took over; this one has changed nothing since.
        SluiceError: What went wrong, in one line.
    """
    with QueueGuard(store_url, INGEST_QUEUE) as guard:
        snapshot = open_snapshot(store_url)
        guard.open(lambda lane: snapshot.positions([lane]).acknowledgeable(lane))
        session = spark or _session(store_url, settings)
        try:
            return _run(session, store_url, settings, guard)
        finally:
            if spark is None:
                session.stop()


@contextmanager
def told_to_stop() -> Iterator[threading.Event]:
    """Gives an event that SIGINT and SIGTERM set, instead of a traceback out of Spark's sockets.

    Only the main thread may take signals; elsewhere the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    taken = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: stop.set()) for number in taken]
    try:
        yield stop
    finally:
        for number, handler in zip(taken, before, strict=True):
            signal.signal(number, handler)


def _session(store_url: str, settings: IngestSettings) -> Session:
    wanted = SessionSettings(master=settings.master, driver_memory=settings.driver_memory)
    on_s3 = (settings.checkpoint or "").startswith("s3a://")
    return open_session(wanted, delta=False, s3a=store_url if on_s3 else None)


def _run(session: Session, store_url: str, settings: IngestSettings, guard: QueueGuard) -> Totals:
    def write(rows: Sequence[Waiting]) -> list[Fact]:
        tasks = plan_tasks(store_url, rows, session.sparkContext.defaultParallelism)
        return run_tasks(session, tasks)

    ingester = Ingester(
        store_url=store_url, guard=guard, write=write, clock=SystemClock(), ids=SystemIds()
    )
    sink = Sink(ingester)
    query = _started(session, store_url, settings, sink)
    try:
        with told_to_stop() as stop:
            while not query.awaitTermination(_LOOK_S):
                if stop.is_set():
                    break
    except Exception as error:  # noqa: BLE001 - Spark raises whatever it likes
        _raise(sink.failure, error)
    finally:
        with suppress(Exception):
            query.stop()
    return ingester.totals


def _started(session: Session, store_url: str, settings: IngestSettings, sink: Sink) -> Any:  # noqa: ANN401
    try:
        return _query(session, store_url, settings, sink)
    except Exception as error:
        if _NO_S3A in str(error):
            raise BadUsage(
                "Spark has no S3 client for this checkpoint: give spark-submit"
                f" --packages {S3A_PACKAGE}:{read_hadoop_version()},"
                f" checkpoint=`{settings.checkpoint}`"
            ) from error
        _raise(sink.failure, error)


def _query(session: Session, store_url: str, settings: IngestSettings, sink: Sink) -> Any:  # noqa: ANN401
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


def _raise(failure: BaseException | None, error: Exception) -> NoReturn:
    """Raises what went wrong on our side rather than Spark's wrapping of it."""
    if isinstance(failure, SluiceError):
        raise failure
    raise JobFailed(f"ingest stopped: {last_line(str(failure or error))}") from error
