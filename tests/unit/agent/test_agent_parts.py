"""Batching, columns, settings, keys and the pipe."""

import os
import tomllib
from pathlib import Path

import numpy as np
import pytest

from sluice_agent.batching import BatchBuilder, BatchLimits, RecordBlock, join_checkpoints
from sluice_agent.columns import (
    attribute_columns,
    join_logs,
    logs_from_block,
    split_lines,
    text_column,
)
from sluice_agent.line_readers import PipeInput
from sluice_agent.settings import AgentSettings
from sluice_agent.signing_key import make_key, principal_entry, read_key
from sluice_agent.spool_format import FileCheckpoint
from sluice_protocol.columns import LogColumns
from sluice_protocol.errors import BadUsage
from sluice_protocol.frame import decode_frame, encode_frame
from sluice_protocol.identity import Identity
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.units import UnixNs

NOW = UnixNs(5)


def logs(*lines: bytes, path: str = "") -> LogColumns:
    return logs_from_block(b"\n".join(lines) + b"\n", arrived_ns=NOW, zone=None, path=path)


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
        ts=np.array([1], np.int64), body=text_column([b"four"]), severity=np.array([9], np.uint8),
        attributes=attribute_columns([[("b", "2"), ("log.file.path", "z")]]),
    )  # fmt: skip
    joined = through_a_frame(join_logs([bare, named, odd, severe]))
    bodies = [b"one", b"two", b"three", "caf\ufffd".encode(), b"four"]
    assert joined.body.slices() == bodies
    assert joined.severity is not None
    assert joined.severity.tolist() == [0, 0, 0, 0, 9]
    assert list(attribute_rows(joined.attributes, 5)) == [
        {}, {}, {"log.file.path": "/var/log/x"},
        {"log.file.path": "/var/log/y", "sluice.raw": "Y2Fm6Q=="},
        {"b": "2", "log.file.path": "z"},
    ]  # fmt: skip


def test_a_batch_is_due_by_size_count_or_age() -> None:
    """It never exceeds its limits, except for a single block that exceeds them alone."""
    limits = BatchLimits(bytes_max=100, records_max=3, age_s_max=2)
    one = RecordBlock(columns=logs(b"x"), cost_bytes=40)
    builder = BatchBuilder(limits=limits)
    assert not builder.is_due(now_s=99)
    assert builder.take() is None
    builder.add(one, now_s=0)
    assert not builder.is_due(now_s=1.9)
    assert builder.is_due(now_s=2)
    builder.add(one, now_s=1)
    assert not builder.has_room_for(one)
    assert not builder.has_room_for(RecordBlock(columns=logs(b"x", b"y"), cost_bytes=1))
    gathered = builder.take()
    assert gathered is not None
    assert len(gathered.columns) == 2
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


def test_a_key_is_created_once_and_is_private(tmp_path: Path) -> None:
    """Mode 0600, never overwritten, rejected when others may read it; its entry is TOML."""
    path = tmp_path / "deep" / "key.pem"
    made = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_key(path).public_base64 == made.public_base64
    with pytest.raises(BadUsage, match="exists"):
        make_key(path)
    entry = tomllib.loads(principal_entry('odd "name"\\', "host-1", made))["principals"][0]
    assert entry["name"] == 'odd "name"\\'
    assert entry["keys"] == [{"id": made.key_id, "ed25519": made.public_base64}]
    path.chmod(0o644)
    with pytest.raises(BadUsage, match="chmod"):
        read_key(path)
    with pytest.raises(BadUsage, match="agent init"):
        read_key(tmp_path / "none")
    other = tmp_path / "other"
    other.touch(mode=0o600)
    with pytest.raises(BadUsage, match="not a private key"):
        read_key(other)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"gateway": ""}, "gateways"), ({"gateway": "ftp://x"}, "gateways"),
        ({"gateway": "http://"}, "gateways"), ({"gateway": "http://a,b"}, "gateways"),
        ({"spool_bytes": 1}, "spool"), ({"uploads": 0}, "uploads"),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(how: dict, message: str) -> None:
    """The error is raised before any input is opened."""
    with pytest.raises(BadUsage, match=message):
        AgentSettings(**{"gateway": "http://a", **how})


def test_settings_checked_on_use_are_rejected() -> None:
    """Batches, time zone and resource."""
    with pytest.raises(BadUsage, match="batch bytes"):
        AgentSettings(gateway="http://a", batch_bytes=1 << 30).for_batching()
    with pytest.raises(BadUsage, match="time zone"):
        AgentSettings(gateway="http://a", timezone="Nowhere/Else").zone()
    with pytest.raises(BadUsage, match="key=value"):
        AgentSettings(gateway="http://a", resource=("novalue",)).for_spool()


def test_a_pipe_returns_whole_lines() -> None:
    """An incomplete line is kept for the next read; at the end of the pipe the rest is a line."""
    reading, writing = os.pipe()
    try:
        pipe = PipeInput(reading)
        assert pipe.read(now_ns=NOW).block is None
        os.write(writing, b"one\ntw")
        assert bodies(pipe) == [b"one"]
        os.write(writing, b"o\n")
        assert bodies(pipe) == [b"two"]
        os.write(writing, b"rest")
        assert bodies(pipe) == []
        os.close(writing)
        read_result = pipe.read(now_ns=NOW)
        assert read_result.ended
        assert read_result.block is not None
        assert read_result.block.columns.body.slices() == [b"rest"]
    finally:
        os.close(reading)


def test_a_pipe_splits_very_long_lines(tmp_path: Path) -> None:
    """The line is split between characters, and its pieces are marked as continued."""
    line = "é".encode() * (1024 * 1024 + 7)
    path = tmp_path / "input"
    path.write_bytes(b"x" + line)
    with path.open("rb", buffering=0) as file:
        pipe, pieces = PipeInput(file.fileno()), []
        while True:
            read_result = pipe.read(now_ns=NOW)
            if read_result.block is not None:
                pieces.append(read_result.block.columns)
            if read_result.ended:
                break
    assert b"".join(piece.body.data for piece in pieces) == b"x" + line
    named = [piece.attributes.names if piece.attributes else () for piece in pieces]
    assert named == [("sluice.continues",), ("sluice.continues",), ()]


def bodies(pipe: PipeInput) -> list[bytes]:
    block = pipe.read(now_ns=NOW).block
    return [] if block is None else block.columns.body.slices()
