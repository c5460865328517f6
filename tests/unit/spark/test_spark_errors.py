import pytest

from sluice_spark.errors import describe_failure, find_cause
from sluice_spark.ingest.supervision import TransientFailure, classify_failure

STREAM_FAILED = "[STREAM_FAILED] Query [id = 17e4, runId = 93bc] terminated with exception: "


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            (
                f"{STREAM_FAILED}ValueError: x\nTraceback:\n"
                "  sluice_protocol.errors.BadUsage: give a store\n\tat org.apache\n"
            ),
            "give a store",
        ),
        (f"{STREAM_FAILED}worker failed\nTraceback:\nValueError: bad value\n", "bad value"),
        (
            (
                "An error occurred while calling o74.start.\n"
                ": java.io.IOException: mkdir of file:/x failed\n\tat org.apache.hadoop\n"
            ),
            "mkdir of file:/x failed",
        ),
        (
            (
                ": org.apache.spark.SparkException: [CANNOT_LOAD] Error loading. SQLSTATE: 58030\n"
                "\tat org.apache\nCaused by: java.lang.RuntimeException: no such class\n"
            ),
            "no such class",
        ),
        (
            (
                f"{STREAM_FAILED}Failed to read log file file:/x. SQLSTATE: KD002 SQLSTATE: XXKST\n"
                "=== Streaming Query ===\n"
            ),
            "Failed to read log file file:/x.",
        ),
        (f"{STREAM_FAILED} SQLSTATE: XXKST\n=== Query ===\n", "Spark reported no reason"),
        ("first line\nsecond line", "first line"),
        ("", "Spark reported no reason"),
    ],
)
def test_find_cause_returns_the_innermost_message(text: str, cause: str) -> None:
    assert find_cause(text) == cause


def test_an_exception_without_a_message_is_described_by_its_class_in_the_stack() -> None:
    error = RuntimeError(f"{STREAM_FAILED} SQLSTATE: XXKST")
    error._stackTrace = (  # type: ignore[attr-defined] - as an exception of pyspark
        "org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED]\n\tat x\n"
        "Caused by: java.lang.RuntimeException: outer\n\tat y\n"
        "Caused by: java.io.EOFException\n\tat java.base/java.io.DataInputStream.readInt\n"
    )
    assert describe_failure(error) == "EOFException"
    assert classify_failure(error) is TransientFailure.CONNECTION_LOST
