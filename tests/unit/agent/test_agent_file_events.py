"""What happens to followed files, with the agent running, stopped, or with a new spool.

Every line that was written is sent at least once, and exactly once where `docs/agent.md` promises
it. A line that no file contains any more when the agent could have read it is not expected.
"""

import glob
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from sluice_agent.inputs.file_identity import BLOCK_BYTES
from sluice_agent.inputs.files import LINE_WAIT_S, FileInput
from sluice_agent.inputs.line_readers import LINE_BYTES_MAX
from sluice_agent.settings import FileSettings
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.columns import LogColumns
from sluice_protocol.units import UnixNs

MODES = ("running", "stopped", "new")
LINE_BYTES = 130
SMALL, LARGE = 30, 1_200
"""Lines before the event: within the blocks that are always compared, and beyond them."""


def line_of(number: int) -> bytes:
    """Return a line that no other number has, `LINE_BYTES` long with its end."""
    return b"line %07d" % number + b"." * (LINE_BYTES - 13)


class World:
    """A folder with followed files, and an agent that may run."""

    def __init__(self, folder: Path, pattern: str, count: int) -> None:
        self.folder = folder
        self.log = folder / "app.log"
        self.pattern = str(folder / pattern)
        self.checkpoints: dict[str, FileCheckpoint] = {}
        self.now_s = 0.0
        self.sent: list[bytes] = []
        self.count = count
        self.number = 0
        self.input: FileInput | None = None

    def lines(self, count: int) -> bytes:
        """Return new lines, all different."""
        first, self.number = self.number, self.number + count
        return b"".join(line_of(one) + b"\n" for one in range(first, self.number))

    def append(self, count: int, path: Path | None = None) -> bytes:
        data = self.lines(count)
        with (path or self.log).open("ab") as file:
            file.write(data)
        return data

    def start(self) -> None:
        self.input = FileInput(FileSettings(patterns=(self.pattern,)), self.checkpoints)

    def stop(self) -> None:
        if self.input is not None:
            self.input.close()
        self.input = None

    def poll(self, after_s: float = 1.5) -> None:
        """Poll until nothing is new, and again when no line waits for another."""
        for wait_s in (after_s, LINE_WAIT_S):
            self.now_s += wait_s
            self._poll()

    def _poll(self) -> None:
        busy = self.input is not None
        while busy:
            assert self.input is not None
            polled = self.input.poll(
                now_s=self.now_s, now_ns=UnixNs(1), sealed=self.checkpoints, final=False
            )
            self.checkpoints.update({each.source: each for each in polled.new_checkpoints})
            for block in polled.blocks:
                assert isinstance(block.columns, LogColumns)
                self.sent += block.columns.body.slices()
                self.checkpoints.update({each.source: each for each in block.checkpoints})
            for source in polled.finished:
                self.checkpoints.pop(source, None)
            busy = bool(polled.blocks) or polled.busy

    def present(self) -> Counter[bytes]:
        """Return the lines that are in files that match the pattern."""
        found: Counter[bytes] = Counter()
        for path in glob.glob(self.pattern):  # noqa: PTH207 - the agent's patterns
            found.update(read_lines(Path(path)))
        return found


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file; many zero bytes are a hole, which ends a line."""
    with path.open("rb") as file:
        if path.stat().st_size > 32 * 2**20:
            file.seek(64 * 2**20 - 4096)
        text = re.sub(rb"\0{256,}", b"\n", file.read()).replace(b"\0", b"")
    return [line for line in text.splitlines() if line]


def copytruncate(world: World, copy: str = "app.log.1") -> None:
    shutil.copy(world.log, world.folder / copy)
    os.truncate(world.log, 0)


def replace(world: World, data: bytes) -> None:
    """Write another file and rename it over the log, as editors do."""
    other = world.folder / "new-file"
    other.write_bytes(data)
    other.rename(world.log)


def other_middle(data: bytes) -> bytes:
    """Return lines of the same length, of which the first and the last are the same."""
    middle = len(data) // 2 // LINE_BYTES * LINE_BYTES
    return data[:middle] + b"other" + data[middle + 5 :]


def grow(world: World) -> None:
    world.append(5)


def rename(world: World) -> None:
    world.append(5)
    world.log.rename(world.folder / "app.log.1")
    world.append(5)


def rename_away(world: World) -> None:
    world.append(5)
    world.log.rename(world.folder / "old")
    world.append(5)


def rename_without_a_new_file(world: World) -> None:
    world.append(5)
    world.log.rename(world.folder / "app.log.1")


def copy_and_truncate(world: World) -> None:
    world.append(5)
    copytruncate(world)
    world.append(5)


def copy_truncate_and_wait(world: World) -> None:
    copytruncate(world)
    world.poll()
    world.append(5)


def truncate(world: World) -> None:
    os.truncate(world.log, 0)
    world.append(5)


def truncate_and_write_more(world: World) -> None:
    os.truncate(world.log, 0)
    world.append(world.count + 5)


def truncate_half(world: World) -> None:
    os.truncate(world.log, world.log.stat().st_size // 2 // LINE_BYTES * LINE_BYTES)
    world.append(5)


def truncate_half_of_a_line(world: World) -> None:
    os.truncate(world.log, world.log.stat().st_size // 2 - 5)
    with world.log.open("r+b") as file:
        file.seek(world.count * LINE_BYTES)
        file.write(world.lines(5))


def hole(world: World) -> None:
    """A program that does not append continues at its position in the truncated file."""
    at = world.log.stat().st_size if world.log.exists() else 0
    os.truncate(world.log, 0)
    for _ in range(3):
        data = world.lines(5)
        with world.log.open("r+b") as file:
            file.seek(at)
            file.write(data)
        at += len(data)
        world.poll()


def large_hole(world: World) -> None:
    os.truncate(world.log, 0)
    at = 64 * 2**20
    for _ in range(3):
        data = world.lines(5)
        with world.log.open("r+b") as file:
            file.seek(at)
            file.write(data)
        at += len(data)
        world.poll()


def room_before(world: World) -> None:
    """A program that allocates its file before: zero bytes are lines later."""
    at = world.log.stat().st_size
    os.truncate(world.log, at + 10_000)
    world.poll()
    for _ in range(3):
        data = world.lines(5)
        with world.log.open("r+b") as file:
            file.seek(at)
            file.write(data)
        at += len(data)
        world.poll()


def rewrite(world: World) -> None:
    world.log.write_bytes(world.lines(world.count))


def rewrite_middle(world: World) -> None:
    world.log.write_bytes(other_middle(world.log.read_bytes()))


def rewrite_middle_with_its_times(world: World) -> None:
    times = world.log.stat()
    world.log.write_bytes(other_middle(world.log.read_bytes()))
    os.utime(world.log, ns=(times.st_atime_ns, times.st_mtime_ns + 1))


def replace_same(world: World) -> None:
    replace(world, world.log.read_bytes() + world.lines(5))


def replace_other(world: World) -> None:
    replace(world, world.lines(world.count + 5))


def remove(world: World) -> None:
    world.log.unlink()
    world.append(5)


def copy_to_another_inode(world: World) -> None:
    shutil.copy2(world.log, world.folder / "app.log.2")
    world.log.unlink()
    world.append(5, world.folder / "app.log.2")
    (world.folder / "app.log.2").rename(world.log)


def two_alike(world: World) -> None:
    """A file with the same begin, end and length as one that is truncated within a minute."""
    data = world.log.read_bytes()
    world.poll()
    os.truncate(world.log, 0)
    world.poll()
    (world.folder / "app.log.alike").write_bytes(other_middle(data))
    world.append(5)


def touch(world: World) -> None:
    world.log.touch()
    world.poll()
    world.log.chmod(0o640)


def plain_copy(world: World) -> None:
    shutil.copy(world.log, world.folder / "app.log.backup")
    world.append(5)


class Event(NamedTuple):
    """An event, and the modes in which a line may be sent more than once."""

    change: Callable[[World], None]
    again: tuple[str, ...] = ()


EVENTS = (
    Event(grow), Event(rename), Event(rename_away), Event(rename_without_a_new_file),
    Event(copy_and_truncate), Event(copy_truncate_and_wait, again=("new",)),
    Event(truncate), Event(truncate_and_write_more),
    Event(truncate_half, again=("running", "stopped")),
    Event(truncate_half_of_a_line, again=("running", "stopped")),
    Event(hole), Event(large_hole), Event(room_before),
    Event(rewrite), Event(rewrite_middle, again=("running", "stopped")),
    Event(rewrite_middle_with_its_times, again=("running", "stopped")),
    Event(replace_same, again=("running",)), Event(replace_other), Event(remove),
    Event(copy_to_another_inode, again=("running",)),
    Event(two_alike, again=MODES), Event(touch), Event(plain_copy, again=MODES),
)  # fmt: skip


@pytest.mark.daily(24)
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("event", EVENTS, ids=lambda one: one.change.__name__)
@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_no_line_is_lost(tmp_path: Path, event: Event, mode: str, count: int, pattern: str) -> None:
    world = World(tmp_path, pattern, count)
    world.append(count)
    if mode != "new":
        world.start()
        world.poll()
        assert len(world.sent) == count
    expected = Counter(world.sent)
    if mode == "stopped":
        world.stop()
    event.change(world)
    if mode == "new":
        expected = Counter()
    if mode != "running":
        world.start()
    for after_s in (1.5, 1.5, 70.0, 70.0):
        world.poll(after_s)
    for line, times in world.present().items():
        expected[line] = max(expected[line], 1, times if mode == "new" else 0)
    sent = Counter(world.sent)
    assert {line: n for line, n in expected.items() if not sent[line]} == {}, "lost"
    assert not any(b"\0" in line for line in sent)
    if mode not in event.again:
        assert {line: n for line, n in sent.items() if n > 1} == {}, "sent again"
    world.poll(70.0)
    assert Counter(world.sent) == sent, "a file at rest is not sent again"
    world.stop()
    world.start()
    world.poll(70.0)
    assert Counter(world.sent) == sent, "a restart sends nothing again"
    world.stop()


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_link_that_moves(tmp_path: Path, stopped: bool, count: int) -> None:
    """Lines appended to the old target before the move are sent (the layout of Kubernetes)."""
    for pod in ("a", "b"):
        (tmp_path / "pods" / pod).mkdir(parents=True)
    (tmp_path / "links").mkdir()
    old, new = tmp_path / "pods/a/0.log", tmp_path / "pods/b/0.log"
    link = tmp_path / "links/app.log"
    world = World(tmp_path, "links/*.log", count)
    world.append(count, old)
    link.symlink_to(old)
    world.start()
    world.poll()
    if stopped:
        world.stop()
    world.append(50, old)
    world.append(50, new)
    link.unlink()
    link.symlink_to(new)
    if stopped:
        world.start()
    for after_s in (1.5, 1.5, 70.0, 70.0):
        world.poll(after_s)
    assert sorted(world.sent) == [line_of(one) for one in range(count + 100)]
    assert world.input is not None
    assert world.input.counts.missing == 0


def test_an_inode_that_another_file_has_is_not_read_outside_of_the_patterns(tmp_path: Path) -> None:
    """It is reported as missing: the file that has its inode now is none of the agent's."""
    world = World(tmp_path, "*.log", SMALL)
    world.append(SMALL)
    world.start()
    world.poll()
    world.stop()
    world.log.write_bytes(b"a secret\n" * 5)  # the same inode
    world.log.rename(tmp_path / "private")
    world.start()
    world.poll()
    assert b"a secret" not in world.sent
    assert world.input is not None
    assert world.input.counts.missing == 1


def test_what_is_not_read_is_counted(tmp_path: Path) -> None:
    world = World(tmp_path, "app.log*", SMALL)
    (tmp_path / "app.log.bin").write_bytes(bytes(range(256)) * 8)
    world.append(SMALL)
    world.start()
    world.poll()
    hole(world)
    assert world.input is not None
    counts = world.input.counts
    assert (counts.rewritten, counts.hole_bytes, counts.missing) == (1, SMALL * LINE_BYTES, 0)
    assert counts.binary == (str(tmp_path / "app.log.bin"),)
    with (tmp_path / "app.log.bin").open("ab") as file:
        file.write(b"now it is text\n" * 5000)
    world.poll()
    assert counts.binary == ()
    assert b"now it is text" in world.sent


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size_bytes", [LINE_BYTES_MAX + delta for delta in (-2, -1, 0, 1, 2, 3)])
def test_lines_about_as_long_as_a_record(tmp_path: Path, size_bytes: int, end: bytes) -> None:
    """Only a line that is longer is split, and no record is empty."""
    world = World(tmp_path, "app.log", 0)
    line = b"x" * size_bytes
    world.start()
    for part in (line, end[:1], end[1:] + b"next\n"):
        with world.log.open("ab") as file:
            file.write(part)
        world.poll()
    split = [LINE_BYTES_MAX, size_bytes - LINE_BYTES_MAX]
    sizes = split if size_bytes > LINE_BYTES_MAX else [size_bytes]
    assert [len(one) for one in world.sent] == [*sizes, 4]


def test_marks_of_text_files_are_no_text(tmp_path: Path) -> None:
    """A byte order mark begins a file, also after a truncation; CR LF ends a line."""
    world = World(tmp_path, "app.log", 0)
    world.start()
    for round_ in range(2):
        world.log.write_bytes(b"\xef\xbb\xbfone %d\r\ntwo\r\n\r\n" % round_)
        world.poll()
    assert world.sent == [b"one 0", b"two", b"", b"one 1", b"two", b""]


def test_zero_bytes_inside_a_line_are_its_bytes(tmp_path: Path) -> None:
    """So many that they must be a hole end the line, also at the end of a block."""
    world = World(tmp_path, "app.log", 0)
    world.log.write_bytes(
        b"text\n" * 200 + b"a\0b\n" + b"cut" + bytes(BLOCK_BYTES) + b"next\n" + b"\0\0\0last\n"
    )
    world.start()
    world.poll()
    assert world.sent[200:] == [b"a\0b", b"cut", b"next", b"last"]
