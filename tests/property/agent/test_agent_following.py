"""Following files with any interleaving of writes, rotations, sealing and crashes."""

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sluice_agent.inputs.files import FileInput
from sluice_agent.settings import FileSettings
from sluice_agent.spool.batching import RecordBlock, join_blocks, join_checkpoints
from sluice_agent.spool.format import FileCheckpoint
from sluice_protocol.columns import LogColumns
from sluice_protocol.units import UnixNs


class FileFollowing(RuleBasedStateMachine):
    """The spool is modelled by `checkpoints`, `lines`, and the blocks that are not sealed yet."""

    @initialize(inside=st.booleans())
    def start(self, inside: bool) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="agent-following-")
        self.log = Path(self.folder.name) / "app.log"
        self.log.write_bytes(b"")
        pattern = "app.log*" if inside else "app.log"
        self.settings = FileSettings(patterns=(str(self.log.with_name(pattern)),))
        self.inside = inside
        self.written = b""
        self.count = self.rotations = 0
        self.now_s = 0.0
        self.known = False
        self.checkpoints: dict[str, FileCheckpoint] = {}
        self.pending: list[RecordBlock] = []
        self.lines: list[bytes] = []
        self.input = FileInput(self.settings, {})

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        self.input.close()
        self.input = FileInput(self.settings, self.checkpoints)
        self.pending = []
        for _ in range(6):
            self.now_s += 100
            self._poll(final=True)
            self.seal(len(self.pending))
        self.input.close()
        self.folder.cleanup()
        assert Counter(self.lines) == Counter(self.written.splitlines())

    @rule(count=st.integers(1, 30), width=st.integers(0, 60), cut=st.integers(0, 400))
    def write(self, count: int, width: int, cut: int) -> None:
        """Write unique lines in two writes; the last line is incomplete for a while."""
        if self.written and not self.written.endswith(b"\n"):
            self._append(b"\n")
        new = [f"{self.count + n} {'x' * width}".encode() for n in range(count)]
        self.count += count
        data = b"\n".join(new)
        self._append(data[:cut])
        self._append(data[cut:])

    def _append(self, data: bytes) -> None:
        self.written += data
        with self.log.open("ab") as file:
            file.write(data)

    @rule(after_s=st.sampled_from([0.1, 1.5, 70.0]))
    def poll(self, after_s: float) -> None:
        self.now_s += after_s
        self._poll(final=False)

    def _poll(self, *, final: bool) -> None:
        polled = self.input.poll(
            now_s=self.now_s, now_ns=UnixNs(1), sealed=self.checkpoints, final=final
        )
        self.checkpoints.update({each.source: each for each in polled.new_checkpoints})
        self.pending += polled.blocks
        for source in polled.finished:
            self.checkpoints.pop(source)
        self.known = True

    @rule(most=st.integers(1, 3))
    def seal(self, most: int) -> None:
        """Make the oldest blocks durable, as one batch."""
        blocks, self.pending = self.pending[:most], self.pending[most:]
        if not blocks:
            return
        columns = join_blocks(blocks)
        assert isinstance(columns, LogColumns)
        self.lines += columns.body.slices()
        self.checkpoints.update({each.source: each for each in join_checkpoints(blocks)})

    @rule()
    def crash(self) -> None:
        """Forget what was read and not sealed; the next run begins at the checkpoints."""
        self.input.close()
        self.pending = []
        self.input = FileInput(self.settings, self.checkpoints)
        self.known = False

    @precondition(lambda self: self.inside or self.known)
    @rule()
    def rename(self) -> None:
        """A file that leaves the patterns must have been polled once."""
        self._end_line()
        if not self.inside:
            self.now_s += 1.5
            self._poll(final=False)
        self.rotations += 1
        self.log.rename(self.log.with_name(f"app.log.{self.rotations}"))
        self.log.write_bytes(b"")

    @rule()
    def truncate(self) -> None:
        """Truncate without a copy; every line must have been read."""
        self._end_line()
        for _ in range(20):
            self.now_s += 1.5
            self._poll(final=False)
        self.seal(len(self.pending))
        self.log.write_bytes(b"")
        self._poll(final=False)

    def _end_line(self) -> None:
        if self.written and not self.written.endswith(b"\n"):
            self._append(b"\n")


TestFollowing = FileFollowing.TestCase
TestFollowing.settings = settings(stateful_step_count=30)
