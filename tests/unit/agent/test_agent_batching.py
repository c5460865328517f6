"""Text to columns, concatenation of columns, and batching."""

import numpy as np
import pytest

from sluice_agent.inputs.columns import PATH_ATTRIBUTE, logs_from_block, split_lines
from sluice_agent.settings import BatchLimits
from sluice_agent.spool.batching import BatchBuilder, RecordBlock, join_blocks, join_checkpoints
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.columns import LogColumns
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.records import attribute_columns, text_column
from sluice_protocol.units import UnixNs

NOW = UnixNs(5)


def logs(*lines: bytes, path: str = "") -> LogColumns:
    shared = {PATH_ATTRIBUTE: path} if path else {}
    return logs_from_block(b"\n".join(lines) + b"\n", arrived_ns=NOW, zone=None, shared=shared)


def joined_blocks(parts: list[LogColumns]) -> LogColumns:
    joined = join_blocks([RecordBlock(columns=part, cost_bytes=1) for part in parts])
    assert isinstance(joined, LogColumns)
    return joined


def through_a_frame(columns: LogColumns) -> LogColumns:
    who = Identity(agent_id="a", boot_id="b", seq_start=0, seq_end=len(columns) - 1)
    decoded = decode_frame(encode_frame(identity=who, columns=columns)).columns
    assert isinstance(decoded, LogColumns)
    return decoded


@pytest.mark.parametrize(
    ("block", "lines"),
    [(b"", []), (b"\n", [b""]), (b"a", [b"a"]), (b"a\n", [b"a"]), (b"a\n\nb", [b"a", b"", b"b"])],
)
def test_blocks_are_split_at_newlines(block: bytes, lines: list[bytes]) -> None:
    """A trailing newline ends a line and begins none."""
    assert split_lines(block).slices() == lines


def test_concatenated_columns_keep_the_order() -> None:
    """Columns with and without attributes and severity form one frame, checked by its decoder."""
    bare = logs(b"one", b"two")
    named = logs(b"three", path="/var/log/x")
    odd = logs(b"caf\xe9", path="/var/log/y")
    severe = LogColumns(
        ts=np.array([1], np.int64),
        body=text_column("body", [b"four"]),
        severity=np.array([9], np.uint8),
        attributes=attribute_columns([{"b": "2", "log.file.path": "z"}]),
    )
    joined = through_a_frame(joined_blocks([bare, named, odd, severe]))
    bodies = [b"one", b"two", b"three", "caf\ufffd".encode(), b"four"]
    assert joined.body.slices() == bodies
    assert joined.severity is not None
    assert joined.severity.tolist() == [0, 0, 0, 0, 9]
    assert list(attribute_rows(joined.attributes, 5)) == [
        {}, {}, {"log.file.path": "/var/log/x"},
        {"log.file.path": "/var/log/y", "sluice.raw": "Y2Fm6Q=="},
        {"b": "2", "log.file.path": "z"},
    ]  # fmt: skip


def test_only_records_that_can_be_read_again_wait_for_freshness() -> None:
    """One record that cannot be read again makes the whole batch due after its own, lower age."""
    limits = BatchLimits(age_s_max=1, freshness_s=60)
    of_file = RecordBlock(columns=logs(b"x"), cost_bytes=40, may_wait=True)
    of_client = RecordBlock(columns=logs(b"y"), cost_bytes=40)
    builder = BatchBuilder(limits=limits)
    builder.add(of_file, now_s=0)
    assert not builder.is_due(now_s=59.9)
    assert builder.is_due(now_s=60)
    builder.add(of_client, now_s=20)
    builder.add(of_file, now_s=20.5)
    assert not builder.is_due(now_s=20.9)
    assert builder.is_due(now_s=21)
    builder.take()
    builder.add(of_client, now_s=30)
    assert builder.is_due(now_s=31)
    builder.take()
    builder.add(of_file, now_s=0)
    builder.add(of_client, now_s=59.9)
    assert builder.is_due(now_s=60)


def test_samples_wait_for_their_batch_without_freshness() -> None:
    """Samples that another client sends with them make the batch due after its age."""
    sample = RecordBlock(columns=logs(b"x"), cost_bytes=40, may_wait=True, wait_s=60)
    builder = BatchBuilder(limits=BatchLimits(age_s_max=1))
    builder.add(sample, now_s=0)
    builder.add(sample, now_s=50)
    assert not builder.is_due(now_s=59.9)
    assert builder.is_due(now_s=60)
    builder.add(RecordBlock(columns=logs(b"y"), cost_bytes=40), now_s=55)
    assert builder.is_due(now_s=56)
    builder.take()
    builder.limits = BatchLimits(age_s_max=1, freshness_s=300)
    builder.add(sample, now_s=0)
    assert not builder.is_due(now_s=299)


def test_freshness_below_the_age_changes_nothing() -> None:
    builder = BatchBuilder(limits=BatchLimits(age_s_max=5, freshness_s=1))
    builder.add(RecordBlock(columns=logs(b"x"), cost_bytes=40, may_wait=True), now_s=0)
    assert not builder.is_due(now_s=4.9)
    assert builder.is_due(now_s=5)


def test_a_batch_is_due_by_size_count_or_age() -> None:
    """It never exceeds its limits, except for a single block that exceeds them alone."""
    limits = BatchLimits(bytes_max=100, records_max=3, age_s_max=2)
    one = RecordBlock(columns=logs(b"x"), cost_bytes=40)
    builder = BatchBuilder(limits=limits)
    assert not builder.is_due(now_s=99)
    assert builder.take() == []
    builder.add(one, now_s=0)
    assert not builder.is_due(now_s=1.9)
    assert builder.is_due(now_s=2)
    builder.add(one, now_s=1)
    assert not builder.has_room_for(one)
    assert not builder.has_room_for(RecordBlock(columns=logs(b"x", b"y"), cost_bytes=1))
    assert len(join_blocks(builder.take())) == 2
    assert builder.has_room_for(RecordBlock(columns=logs(b"x"), cost_bytes=1000))


def test_checkpoints_of_one_file_become_one() -> None:
    """The checkpoint covers the file from the start of the first block to the end of the last."""
    checkpoints = [FileCheckpoint(source="1:1", path="/a", start=n, offset=n + 10) for n in (0, 10)]
    blocks = [
        RecordBlock(columns=logs(b"x"), cost_bytes=1, checkpoints=(checkpoint,))
        for checkpoint in checkpoints
    ]
    (checkpoint,) = join_checkpoints(blocks)
    assert (checkpoint.start, checkpoint.offset) == (0, 20)
