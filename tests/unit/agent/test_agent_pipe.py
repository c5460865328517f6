"""The pipe input: whole lines, very long lines, formats and traces."""

import os
from pathlib import Path

from sluice_agent.inputs.line_readers import PipeInput
from sluice_agent.settings import BatchLimits, BlockLimits
from sluice_agent.spool.batching import RecordBlock
from sluice_protocol.units import UnixNs

NOW = UnixNs(5)


def test_a_pipe_returns_whole_lines() -> None:
    """The last one once no other continues it."""
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


def test_a_block_of_a_pipe_never_exceeds_a_batch(tmp_path: Path) -> None:
    """Lines that were read and exceed the block are returned by the next reads, in order."""
    lines = [b"%d " % number + b"x" * (number % 90) for number in range(3000)]
    (tmp_path / "input").write_bytes(b"\n".join(lines))
    blocks: list[RecordBlock] = []
    with (tmp_path / "input").open("rb", buffering=0) as file:
        limits = BlockLimits.of(BatchLimits(bytes_max=4000, records_max=50))
        pipe, ended = PipeInput(file.fileno(), limits=limits), False
        while not ended:
            read_result = pipe.read(now_ns=NOW)
            ended = read_result.ended
            blocks += [read_result.block] if read_result.block is not None else []
    assert [one for block in blocks for one in block.columns.body.slices()] == lines
    assert max(block.cost_bytes for block in blocks) <= 4000
    assert max(len(block.columns) for block in blocks) == 50


def test_a_pipe_has_formats_and_traces(tmp_path: Path) -> None:
    """With any sizes of reads; lines that wait at a stop are returned."""
    data = b'banner\n{"message":"a","n":1}\nError: x\n  at b\n{"message":"c"}\nlast\n at d\n'
    (tmp_path / "input").write_bytes(data)
    for read_bytes in (3, 20, 1000):
        with (tmp_path / "input").open("rb", buffering=0) as file:
            pipe = PipeInput(file.fileno(), limits=BlockLimits(read_bytes=read_bytes))
            found: list[bytes] = []
            for _ in range(len(data)):
                found += bodies(pipe, reads=1)
            assert found == [b"banner", b"a", b"Error: x\n  at b", b"c", b"last\n at d"]
    reading, writing = os.pipe()
    os.write(writing, b"one\n two\n")
    pipe = PipeInput(reading)
    assert bodies(pipe, reads=1) == []
    rest = pipe.read_rest(now_ns=NOW)
    assert rest is not None
    assert rest.columns.body.slices() == [b"one\n two"]
    os.close(reading)
    os.close(writing)


def bodies(pipe: PipeInput, reads: int = 8) -> list[bytes]:
    """Return the bodies of the first of some reads that has any."""
    for _ in range(reads):
        block = pipe.read(now_ns=NOW).block
        if block is not None:
            return block.columns.body.slices()
    return []
