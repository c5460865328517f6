from sluice_protocol.record_deletes import DeleteRecord
from sluice_spark.housekeeping import (
    delete_condition,
    falls_wholly,
    is_closed,
    may_match,
    small_files,
)
from sluice_spark.inventory import DataFile
from sluice_spark.tracebacks import last_line

DAY_NS = 86_400 * 10**9
T0_NS = 1_790_000_000 * 10**9  # 2026-09-21T14:13:20Z


def file(size_bytes: int = 1, **more: object) -> DataFile:
    given = {"agents": ("a", "c"), "times_ns": (T0_NS, T0_NS + 10)} | more
    return DataFile(
        path=f"p{size_bytes}", partition="2026-09-21", size_bytes=size_bytes, records=1, **given
    )  # type: ignore[arg-type]


def record(**more: object) -> DeleteRecord:
    given = {"accepted_until_unix_ns": T0_NS + DAY_NS, "agent_id": "b"} | more
    return DeleteRecord(delete_id="0" * 26, kind="logs", **given)  # type: ignore[arg-type]


def test_partition_is_closed_after_its_date_and_the_grace() -> None:
    """A date is closed once it is over by the grace time, not before."""
    end_ns = 1_790_035_200 * 10**9
    assert not is_closed("2026-09-21", end_ns + 3599 * 10**9, 3600)
    assert is_closed("2026-09-21", end_ns + 3600 * 10**9, 3600)


def test_small_files_alone_are_left() -> None:
    """Only two or more small files are worth a rewrite; large ones are never touched."""
    assert small_files([file(10), file(1000)], 1000) == []
    assert [f.size_bytes for f in small_files([file(10), file(11), file(1000)], 1000)] == [10, 11]


def test_delete_may_match_only_what_the_log_allows() -> None:
    """Files are left out by partition, agents and times; unknown statistics leave nothing out."""
    assert may_match(file(), record())
    assert not may_match(file(), record(agent_id="d"))
    assert not may_match(file(), record(accepted_until_unix_ns=T0_NS - DAY_NS))
    assert not may_match(file(), record(from_unix_ns=T0_NS + 11))
    assert not may_match(file(), record(to_unix_ns=T0_NS))
    assert may_match(file(agents=None, times_ns=None), record(agent_id="d", to_unix_ns=T0_NS))


def test_delete_drops_a_file_unread_only_when_every_row_falls() -> None:
    """Retention drops files whose date and times lie wholly before its ends."""
    old = {"agent_id": None, "to_unix_ns": T0_NS + 11}
    assert falls_wholly(file(), record(**old))
    assert not falls_wholly(file(), record(**old, accepted_until_unix_ns=T0_NS))
    assert not falls_wholly(file(), record(to_unix_ns=T0_NS + 11))
    assert not falls_wholly(file(), record(agent_id=None, to_unix_ns=T0_NS + 10))
    assert not falls_wholly(file(times_ns=None), record(**old))


def test_delete_condition_quotes_what_people_write() -> None:
    """A quote or a backslash in a text stays a text."""
    text = delete_condition(record(contains="it's \\ here"))
    assert r"contains(body, 'it\'s \\ here')" in text


def test_last_line_finds_our_error_in_a_wrapped_text() -> None:
    """Of a wrapped traceback the line of sluice is what people see."""
    wrapped = "x\nTraceback:\n  sluice_protocol.errors.BadUsage: give a store\n\tat org.apache\n"
    assert last_line(wrapped) == "give a store"
    assert last_line("") == "no reason was given"
