import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

from sluice_spark.ingest.job import MicroBatchSink


def test_the_job_waits_for_its_running_micro_batch() -> None:
    """The process would crash if it ended while a thread of pyspark commits."""
    begun, go_on, order = threading.Event(), threading.Event(), []

    def ingest(_: object) -> None:
        begun.set()
        go_on.wait(10)
        order.append("committed")

    sink = MicroBatchSink(SimpleNamespace(ingest=ingest))
    frame = SimpleNamespace(toArrow=lambda: pa.table({}))
    running = threading.Thread(target=sink, args=(frame, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice_spark.ingest.job.decode_descriptors", lambda table: table)
        running.start()
        assert begun.wait(10)
        threading.Timer(0.1, go_on.set).start()
        sink.wait()
        order.append("ended")
        running.join()
    assert order == ["committed", "ended"]
