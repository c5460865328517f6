import pytest

from sluice_spark.errors import find_cause

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
        ("first line\nsecond line", "first line"),
        ("", "Spark reported no reason"),
    ],
)
def test_find_cause_returns_the_innermost_message(text: str, cause: str) -> None:
    assert find_cause(text) == cause
