"""Log files: blocks, long lines, invalid bytes, and every kind of rotation."""

import base64
import errno
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from sluice_agent.inputs.files import LINE_WAIT_S, UNREADABLE_S, FileInput
from sluice_agent.inputs.line_readers import LINE_BYTES_MAX, FileChange, FollowedFile
from sluice_agent.settings import BLOCK_COST_BYTES_MAX, BatchLimits, BlockLimits, FileSettings
from sluice_agent.spool.batching import RecordBlock
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.columns import LogColumns
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.units import UnixNs


class Follower:
    """An agent's file input with a spool that accepts everything immediately."""

    def __init__(self, folder: Path, pattern: str = "app.log", **settings: object) -> None:
        self.settings = FileSettings(patterns=(str(folder / pattern),), **settings)
        self.checkpoints: dict[str, FileCheckpoint] = {}
        self.now_s = 0.0
        self.lines: list[bytes] = []
        self.attributes: list[dict[str, str]] = []
        self.input = FileInput(self.settings, {})

    def poll(self, *, final: bool = False, after_s: float = 1.0) -> list[bytes]:
        """Poll until no lines are new and none waits for another; return the new lines."""
        before = len(self.lines)
        self.now_s += after_s
        while self._once(final=final):
            pass
        self.now_s += 2 * LINE_WAIT_S
        while self._once(final=final):
            pass
        return self.lines[before:]

    def _once(self, *, final: bool) -> bool:
        polled = self.input.poll(
            now_s=self.now_s, now_ns=UnixNs(1), sealed=self.checkpoints, final=final
        )
        self.checkpoints.update({each.source: each for each in polled.new_checkpoints})
        for block in polled.blocks:
            assert isinstance(block.columns, LogColumns)
            self.lines += block.columns.body.slices()
            self.attributes += attribute_rows(block.columns.attributes, len(block.columns))
            self.checkpoints.update({each.source: each for each in block.checkpoints})
        for source in polled.finished:
            del self.checkpoints[source]
        return bool(polled.blocks)

    def restart(self) -> None:
        self.input.close()
        self.input = FileInput(self.settings, self.checkpoints)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_an_incomplete_last_line_is_not_read(tmp_path: Path) -> None:
    """An incomplete line is not read, also across a restart; with `final` it is a line."""
    log = tmp_path / "app.log"
    follower = Follower(tmp_path)
    append(log, b"one\ntw")
    assert follower.poll() == [b"one"]
    follower.restart()
    append(log, b"o\nthr")
    assert follower.poll() == [b"two"]
    assert follower.poll(final=True) == [b"thr"]
    assert follower.attributes[0] == {"log.file.path": str(log)}


def test_a_pattern_of_a_folder_is_reported_with_what_is_meant(tmp_path: Path) -> None:
    """No file of the folder is followed."""
    (tmp_path / "logs").mkdir()
    append(tmp_path / "logs" / "app.log", b"one\n")
    with capture_logs() as events:
        assert Follower(tmp_path, "logs").poll() == []
    (event,) = [one for one in events if one["event"] == "pattern_without_files"]
    assert event["meant"] == f"{tmp_path}/logs/*"


def test_a_pattern_that_matches_nothing_at_the_start_is_reported_once(tmp_path: Path) -> None:
    """It may be mistyped: the agent would run, and report success, without a line."""
    with capture_logs() as events:
        follower = Follower(tmp_path, "ap*.log")
        follower.poll()
        follower.poll(after_s=100.0)
        append(tmp_path / "app.log", b"one\n")
        assert follower.poll(after_s=100.0) == [b"one"]
        follower.restart()
        follower.poll()
    names = [(one["event"], one["pattern"]) for one in events if "pattern" in one]
    assert names == [("pattern_without_files", f"{tmp_path}/ap*.log")]


def test_bytes_are_preserved(tmp_path: Path) -> None:
    """Empty lines and bytes that are not UTF-8 can be restored; LF and CR LF end a line."""
    data = b"\n\r\nwindows\r\nc\rr\r\r\ncaf\xe9 \xff\n\xc3\xa9 fine\n"
    append(tmp_path / "app.log", data)
    follower = Follower(tmp_path)
    bodies = follower.poll()
    raw = [
        base64.b64decode(a["sluice.raw"]) if "sluice.raw" in a else body
        for body, a in zip(bodies, follower.attributes, strict=True)
    ]
    assert b"".join(line + b"\n" for line in raw) == data.replace(b"\r\n", b"\n")
    assert [line.decode() for line in bodies][4] == "caf\ufffd \ufffd"


def test_a_character_whose_bytes_are_in_two_lines_is_none(tmp_path: Path) -> None:
    """Each line keeps its bytes, and no line stops the agent."""
    append(tmp_path / "app.log", b"a\xc3\n\xa4b\n")
    follower = Follower(tmp_path)
    assert [line.decode() for line in follower.poll()] == ["a\ufffd", "\ufffdb"]
    raw = [base64.b64decode(one["sluice.raw"]) for one in follower.attributes]
    assert raw == [b"a\xc3", b"\xa4b"]


def test_a_line_over_the_limit_is_split_between_characters(tmp_path: Path) -> None:
    """Its pieces are marked as continued, and together they are the line."""
    line = "é".encode() * LINE_BYTES_MAX + b"end"
    append(tmp_path / "app.log", b"x" + line + b"\nnext\n")
    follower = Follower(tmp_path)
    bodies = follower.poll()
    assert b"".join(bodies[:-1]) == b"x" + line
    assert bodies[-1] == b"next"
    goes_on = ["sluice.continues" in a for a in follower.attributes]
    assert goes_on == [True, True, False, False]
    assert not any("sluice.raw" in a for a in follower.attributes)


def test_rename_inside_and_outside_the_pattern(tmp_path: Path) -> None:
    """Lines written just before a rename are read from the renamed file, then from the new one."""
    log = tmp_path / "app.log"
    follower = Follower(tmp_path)
    append(log, b"1\n")
    assert follower.poll() == [b"1"]
    append(log, b"2\nhal")
    log.rename(tmp_path / "app.log.1")
    append(log, b"3\n")
    assert sorted(follower.poll()) == [b"2", b"3"]
    append(tmp_path / "app.log.1", b"f\n4")
    assert follower.poll() == [b"half"]
    assert follower.poll(after_s=70) == [b"4"]
    assert follower.poll(after_s=70) == []
    assert len(follower.checkpoints) == 1


def test_rename_while_no_agent_runs(tmp_path: Path) -> None:
    """The inode is found in its old directory and read to its end before it is closed."""
    log = tmp_path / "app.log"
    follower = Follower(tmp_path)
    append(log, b"1\n")
    follower.poll()
    append(log, b"2\n")
    log.rename(tmp_path / "old")
    append(log, b"3\n")
    follower.restart()
    assert sorted(follower.poll()) == [b"2", b"3"]


def test_names_that_are_not_utf8_are_shown_and_found_again(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/logs-\xfc"))
    folder.mkdir()
    log = Path(os.fsdecode(os.fsencode(folder) + b"/app\xff.log"))
    append(log, b"one\ntwo")
    follower = Follower(tmp_path, "*/*.log")
    assert follower.poll() == [b"one"]
    assert follower.attributes == [{"log.file.path": f"{tmp_path}/logs-\\xfc/app\\xff.log"}]
    stored = msgspec.json.encode(list(follower.checkpoints.values()))
    follower.input.close()
    follower.checkpoints = {
        one.source: one for one in msgspec.json.decode(stored, type=list[FileCheckpoint])
    }
    log.rename(folder / "app.log.1")
    append(folder / "app.log.1", b" and three\n")
    follower.restart()
    assert follower.poll() == [b"two and three"]


def test_a_file_seen_and_renamed_before_its_first_batch(tmp_path: Path) -> None:
    """A file is known from the first poll, before any of its lines is durable."""
    log = tmp_path / "app.log"
    append(log, b"1\n")
    follower = Follower(tmp_path)
    polled = follower.input.poll(now_s=1, now_ns=UnixNs(1), sealed={})
    follower.checkpoints.update({each.source: each for each in polled.new_checkpoints})
    log.rename(tmp_path / "old")
    follower.restart()
    assert follower.poll() == [b"1"]


BULK = b"".join(b"line %d\n" % n for n in range(300))


def test_a_copy_found_before_the_truncation_is_not_read(tmp_path: Path) -> None:
    """Lines that the original still provides are not read from the copy."""
    log = tmp_path / "app.log"
    follower = Follower(tmp_path, "app.log*")
    log.write_bytes(BULK)
    follower.poll()
    append(log, b"in both\n")
    shutil.copy(log, tmp_path / "app.log.1")
    assert follower.poll() == [b"in both"]
    with log.open("r+b") as file:
        file.truncate()
    append(log, b"new\n")
    assert follower.poll() == [b"new"]
    assert follower.poll(after_s=130) == []
    follower.restart()
    assert follower.poll() == []


def test_an_ordinary_copy_is_a_separate_file(tmp_path: Path) -> None:
    """If the original is not truncated within a minute, the copy is read from its start."""
    log = tmp_path / "app.log"
    follower = Follower(tmp_path, "app.log*")
    log.write_bytes(BULK)
    follower.poll()
    shutil.copy(log, tmp_path / "app.log.backup")
    assert follower.poll() == []
    follower.restart()
    assert follower.poll() == []
    assert follower.poll(after_s=70) == BULK.splitlines()
    assert follower.poll(after_s=70) == []
    shutil.copy(log, tmp_path / "app.log.last")
    assert follower.poll(final=True) == BULK.splitlines()


def test_from_end_reads_only_new_lines(tmp_path: Path) -> None:
    """Also after a restart without a line in between."""
    log = tmp_path / "app.log"
    append(log, b"old\n")
    follower = Follower(tmp_path, from_end=True)
    assert follower.poll() == []
    follower.restart()
    append(log, b"new\n")
    assert follower.poll() == [b"new"]


def test_binary_and_excluded_files_are_skipped(tmp_path: Path) -> None:
    """A zero byte at the beginning, or the name of a compressed file."""
    (tmp_path / "wtmp.log").write_bytes(b"\0\1\2\n")
    (tmp_path / "old.log.gz").write_bytes(b"text\n")
    (tmp_path / "dir.log").mkdir()
    append(tmp_path / "app.log", b"1\n")
    assert Follower(tmp_path, "*.log*").poll() == [b"1"]


def test_a_log_file_with_the_inode_of_a_skipped_file_is_read(tmp_path: Path) -> None:
    """Most file systems give the inode of a deleted file to the next new one."""
    binary, log = tmp_path / "old.log", tmp_path / "app.log"
    binary.write_bytes(b"\0\1\2\n")
    follower = Follower(tmp_path, "*.log")
    with capture_logs() as logs:
        assert follower.poll() == []
        append(binary, b"more\n")
        assert follower.poll() == []
    assert [one["path"] for one in logs] == [str(binary)]
    binary.write_bytes(b"one\n")  # the same inode
    binary.rename(log)
    assert follower.poll() == [b"one"]


def test_a_file_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    """The memory of a process is a regular file without a first byte, so it fails as a bad disk."""
    append(tmp_path / "app.log", b"one\n")
    follower = Follower(tmp_path)
    follower.settings = FileSettings(patterns=("/proc/self/mem", *follower.settings.patterns))
    follower.restart()
    with capture_logs() as logs:
        assert follower.poll() == [b"one"]
        follower.poll(after_s=UNREADABLE_S / 2)
    assert [one["path"] for one in logs if one["event"] == "file_unreadable"] == ["/proc/self/mem"]
    with capture_logs() as logs:
        follower.poll(after_s=UNREADABLE_S)
    assert [one["event"] for one in logs] == ["file_unreadable"]


@pytest.mark.parametrize("reason", [errno.EIO, errno.ESTALE])
def test_a_file_that_fails_for_a_while_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    failing = False
    read = FollowedFile.change

    def change(file: FollowedFile) -> FileChange:
        if failing and file.path.endswith("bad.log"):
            raise OSError(reason, os.strerror(reason))
        return read(file)

    monkeypatch.setattr(FollowedFile, "change", change)
    follower = Follower(tmp_path, "*.log")
    append(tmp_path / "bad.log", b"one\n")
    assert follower.poll() == [b"one"]
    failing = True
    append(tmp_path / "bad.log", b"two\n")
    append(tmp_path / "good.log", b"other\n")
    assert follower.poll() == [b"other"]
    failing = False
    assert follower.poll(after_s=UNREADABLE_S + 2) == [b"two"]


def test_a_block_never_exceeds_a_batch(tmp_path: Path) -> None:
    """Only a single line may be larger: it is a block alone."""
    lines = [b"%d " % number + b"x" * (number % 90) for number in range(3000)]
    lines[1234] = b"y" * 20_000
    append(tmp_path / "app.log", b"\n".join(lines) + b"\n")
    batch = BatchLimits(bytes_max=4000, records_max=30)
    follower = Follower(tmp_path, block=BlockLimits.of(batch))
    blocks: list[RecordBlock] = []
    while polled := follower.input.poll(now_s=0, now_ns=UnixNs(1), sealed={}, final=True).blocks:
        blocks += polled
    assert [one for block in blocks for one in block.columns.body.slices()] == lines
    assert max(len(block.columns) for block in blocks) in (29, 30)
    assert [len(block.columns) for block in blocks if block.cost_bytes > 4000] == [1]


def test_a_block_of_many_short_lines_is_limited_by_cost(tmp_path: Path) -> None:
    (tmp_path / "app.log").write_bytes(b"\n" * 300_000)
    follower = Follower(tmp_path)
    polled = follower.input.poll(now_s=1, now_ns=UnixNs(1), sealed={})
    assert max(block.cost_bytes for block in polled.blocks) <= BLOCK_COST_BYTES_MAX
    assert len(follower.poll()) == 300_000 - sum(len(block.columns) for block in polled.blocks)


def test_a_long_line_in_a_large_read_is_split(tmp_path: Path) -> None:
    """A read may be larger than a record may be; the lines around the long one are whole."""
    line = b"x" * (LINE_BYTES_MAX + 5)
    append(tmp_path / "app.log", b"a\n" * 10 + line + b"\nlast\n")
    follower = Follower(tmp_path, block=BlockLimits.of(BatchLimits()))
    bodies = follower.poll()
    assert bodies[:10] + bodies[-1:] == [b"a"] * 10 + [b"last"]
    assert [len(body) for body in bodies[10:-1]] == [LINE_BYTES_MAX, 5]
    assert ["sluice.continues" in a for a in follower.attributes[9:12]] == [False, True, False]


def test_reads_follow_the_length_of_lines(tmp_path: Path) -> None:
    """A read is about the text of one block: small for short lines, and larger for longer ones."""
    log = tmp_path / "app.log"
    log.write_bytes(b"x\n" * 200_000 + (b"y" * 3999 + b"\n") * 1000 + (b"z" * 40_000 + b"\n") * 50)
    file = FollowedFile(str(log), limits=BlockLimits.of(BatchLimits()))
    sizes: list[int] = []
    while block := file.peek(final=False):
        file.take(block.data)
        sizes.append(len(block.data))
    file.close()
    assert sum(sizes) == log.stat().st_size
    assert max(sizes[:4]) < 200_000
    assert len(sizes) < 20
