"""States of a file system after a loss of power, from the system calls that a program made.

`record` runs a program under strace. `Machine.replay` applies its calls up to a point, and then
loses power: of what no sync covers, a random part reached the disk. The rules are the weakest that
POSIX permits, weaker than those of ext4 and XFS:

- fsync and fdatasync of a file cover its data, length, attributes and times, but not its name;
- fsync of a directory covers the names that were added to it or removed from it;
- syncfs covers everything;
- a sync covers the calls that had returned when it began, from the moment when it returns;
- any other write, alone and torn at multiples of 512 bytes, and any other name, may or may not be
  on the disk. A rename is one step.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STRACE = shutil.which("strace")
_CALLS = (
    "open,openat,creat,write,pwrite64,writev,rename,renameat,renameat2,link,linkat,symlink,"
    "symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,fsync,fdatasync,syncfs,sync,ftruncate,truncate,"
    "fallocate,copy_file_range,sendfile,splice,setxattr,fsetxattr,chmod,fchmod,fchmodat,utimensat"
)
_LINE = re.compile(r"^(\d+) +(.*)$")
_UNFINISHED = re.compile(r"^(.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+)(<.*>)?( .*)?$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"^(\d+)<(.*)>$")
_SECTOR = 512


@dataclass(frozen=True)
class Call:
    """One call that succeeded; `began` and `ended` are places in the trace."""

    name: str
    arguments: tuple[str, ...]
    result: int
    began: int
    ended: int

    def text(self, place: int) -> str:
        """Return a path, or bytes as Latin-1."""
        found = _STRING.search(self.arguments[place])
        assert found, self
        return bytes.fromhex(found[1].replace("\\x", "")).decode("latin-1")

    def path(self, place: int) -> str:
        """Return the path of an argument that names a file by path or by descriptor."""
        opened = _FD.match(self.arguments[place])
        if opened:
            return _unescaped(opened[2])
        return self.text(place)

    def paths(self) -> Iterator[str]:
        """Yield every path of the call, also of descriptors; data look like paths too."""
        for place, argument in enumerate(self.arguments):
            if _FD.match(argument) or _STRING.search(argument):
                yield self.path(place)


def _unescaped(path: str) -> str:
    return re.sub(r"\\x([0-9a-f]{2})", lambda one: chr(int(one[1], 16)), path)


def record(command: Sequence[str], trace: Path, **env: str) -> list[Call]:
    """Run a program under strace; return its calls in the order in which they returned."""
    assert STRACE
    words = [STRACE, "-f", "-y", "-xx", "-s", "1048576", "-o", str(trace), "-e", f"trace={_CALLS}"]
    done = subprocess.run(
        [*words, *command], capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with trace.open(encoding="latin-1") as lines:
        return list(_parse(lines))


def _parse(lines: Iterator[str]) -> Iterator[Call]:
    open_calls: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        matched = _LINE.match(line.rstrip("\n"))
        assert matched, line
        process, text = matched.groups()
        if unfinished := _UNFINISHED.match(text):
            open_calls[process] = (number, unfinished[1])
            continue
        began = number
        if resumed := _RESUMED.match(text):
            began, first = open_calls.pop(process)
            text = first + resumed[1]
        if (call := _CALL.match(text)) and int(call[3]) >= 0:
            yield Call(call[1], tuple(call[2].split(", ")), int(call[3]), began, number)


@dataclass(eq=False)
class _Inode:
    """A file or a directory."""

    is_folder: bool
    data: bytearray = field(default_factory=bytearray)
    mode: int = 0o644
    times_ns: tuple[int, int] | None = None
    attributes: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, "_Inode"] = field(default_factory=dict)


class Machine:
    """The files below `root` while a program runs.

    `ignored` names syncs that have no effect, `file` or `folder`.
    """

    def __init__(self, root: Path, calls: Sequence[Call], ignored: str = "") -> None:
        self._root = str(root)
        self._calls = [call for call in calls if self._concerns(call)]
        self._ignored = ignored

    def _concerns(self, call: Call) -> bool:
        """Return whether a call is about these files or prints: a program also reads modules."""
        if call.name in {"sync", "syncfs"} or call.arguments[0].startswith("1<"):
            return True
        return any(f"{path}/".startswith(f"{self._root}/") for path in call.paths())

    def without(self, sync: str) -> "Machine":
        """Return a machine on which syncs of a file or of a folder have no effect."""
        return Machine(Path(self._root), self._calls, sync)

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self, point: int, rng: random.Random, into: Path) -> list[str]:
        """Write the files after a loss of power; return the lines that were printed before it.

        `point` is the number of calls that had returned. A line counts as printed when its write
        began.
        """
        end = self._calls[point - 1].ended if point else -1
        now, covered = _Names(self._root), set[int]()
        for call in self._calls[:point]:
            if call.name in {"fsync", "fdatasync", "syncfs"}:
                covered |= self._covered(call, now)
            else:
                now.steps += [(call.ended, step) for step in now.apply(call)]
        share, disk = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0)), _Disk()
        for place, (_, step) in enumerate(now.steps):
            if place in covered:
                disk.apply(step, whole=True, rng=rng)
            elif rng.random() < share:
                disk.apply(step, whole=rng.random() < 0.5, rng=rng)
        disk.write(now.root, into)
        return [
            line
            for call in self._calls
            if call.name == "write" and call.arguments[0].startswith("1<") and call.began <= end
            for line in call.text(1).splitlines()
        ]

    def _covered(self, call: Call, now: "_Names") -> set[int]:
        """Return the places of the steps that a sync covers."""
        node = None if call.name == "syncfs" else now.node_of(call.path(0))
        if node is None and call.name != "syncfs":
            return set()
        if self._ignored == ("folder" if node is None or node.is_folder else "file"):
            return set()
        return {
            place
            for place, (ended, step) in enumerate(now.steps)
            if ended < call.began and (node is None or step.is_covered_by(node, call.name))
        }


@dataclass(frozen=True)
class _Step:
    """One change: of a file (`node`), or of names in folders."""

    kind: str
    node: _Inode
    names: tuple[tuple[_Inode, str, _Inode | None], ...] = ()
    offset: int = 0
    data: bytes = b""
    key: str = ""
    number: int = 0

    def is_covered_by(self, node: _Inode, sync: str) -> bool:
        if self.names:
            return any(folder is node for folder, _, _ in self.names)
        if sync == "fdatasync" and self.kind in {"mode", "times"}:
            return False
        return self.node is node


class _Names:
    """The files as the running program sees them, and the steps that led to them."""

    def __init__(self, root: str) -> None:
        self._prefix = root
        self.root = _Inode(is_folder=True)
        self.steps: list[tuple[int, _Step]] = []
        self._offsets: dict[str, tuple[_Inode, int]] = {}

    def _relative(self, path: str) -> list[str] | None:
        if path != self._prefix and not path.startswith(f"{self._prefix}/"):
            return None
        return [part for part in path[len(self._prefix) :].split("/") if part]

    def node_of(self, path: str) -> _Inode | None:
        parts = self._relative(path.removesuffix(" (deleted)"))
        if parts is None:
            return None
        node: _Inode | None = self.root
        for part in parts:
            node = node.entries.get(part) if node else None
        return node

    def _folder_of(self, path: str) -> tuple[_Inode, str] | None:
        parts = self._relative(path)
        if not parts:
            return None
        folder = self.node_of(f"{self._prefix}/" + "/".join(parts[:-1]))
        return (folder, parts[-1]) if folder else None

    def apply(self, call: Call) -> Iterator[_Step]:
        """Apply a call; yield its steps."""
        handler = getattr(self, f"_{call.name}", None)
        if handler is not None:
            yield from handler(call)
        elif any(self._relative(path) is not None for path in call.paths()):
            raise AssertionError(f"the model of a disk does not know {call}")

    def _named(self, *changes: tuple[str, _Inode | None]) -> Iterator[_Step]:
        """Set or remove names; all changes are one step."""
        names = []
        for path, node in changes:
            place = self._folder_of(path)
            if place is None:
                return
            folder, name = place
            names.append((folder, name, node))
            if node is None:
                folder.entries.pop(name, None)
            else:
                folder.entries[name] = node
        yield _Step("names", names[0][0], names=tuple(names))

    def _openat(self, call: Call) -> Iterator[_Step]:
        path, flags = call.path(1), call.arguments[2]
        if self._relative(path) is None:
            return
        descriptor = f"{call.result}"
        node = self.node_of(path)
        if node is None and "O_CREAT" in flags:
            mode = int(call.arguments[3], 8)
            node = _Inode(is_folder=False, mode=mode)
            yield from self._named((path, node))
            yield _Step("mode", node, number=mode)
        elif node is not None and "O_TRUNC" in flags:
            yield from self._cut(node, 0)
        if node is not None:
            at = len(node.data) if "O_APPEND" in flags else 0
            self._offsets[descriptor] = (node, at)

    def _written(self, node: _Inode, offset: int, data: bytes) -> Iterator[_Step]:
        node.data.extend(bytes(max(0, offset + len(data) - len(node.data))))
        node.data[offset : offset + len(data)] = data
        yield _Step("write", node, offset=offset, data=data)

    def _write(self, call: Call) -> Iterator[_Step]:
        node = self.node_of(call.path(0))
        if node is None:
            return
        descriptor = call.arguments[0].partition("<")[0]
        _, at = self._offsets.get(descriptor, (node, 0))
        data = call.text(1).encode("latin-1")[: call.result]
        self._offsets[descriptor] = (node, at + len(data))
        yield from self._written(node, at, data)

    def _pwrite64(self, call: Call) -> Iterator[_Step]:
        node = self.node_of(call.path(0))
        if node is not None:
            data = call.text(1).encode("latin-1")[: call.result]
            yield from self._written(node, int(call.arguments[3]), data)

    def _cut(self, node: _Inode, length: int) -> Iterator[_Step]:
        node.data = bytearray(bytes(node.data[:length]).ljust(length, b"\0"))
        yield _Step("cut", node, number=length)

    def _ftruncate(self, call: Call) -> Iterator[_Step]:
        node = self.node_of(call.path(0))
        if node is not None:
            yield from self._cut(node, int(call.arguments[1]))

    def _fsetxattr(self, call: Call) -> Iterator[_Step]:
        node = self.node_of(call.path(0))
        if node is not None:
            value = call.text(2).encode("latin-1")
            yield _Step("attribute", node, key=call.text(1), data=value)

    _setxattr = _fsetxattr

    def _fchmod(self, call: Call) -> Iterator[_Step]:
        node = self.node_of(call.path(0))
        if node is not None:
            yield _Step("mode", node, number=int(call.arguments[1], 8))

    _chmod = _fchmod

    def _utimensat(self, call: Call) -> Iterator[_Step]:
        by_descriptor = call.arguments[1] == "NULL"
        node = self.node_of(call.path(0) if by_descriptor else call.path(1))
        found = re.findall(r"tv_sec=(\d+), tv_nsec=(\d+)", ", ".join(call.arguments))
        if node is not None and found:
            seconds, ns = found[-1]
            yield _Step("times", node, number=int(seconds) * 10**9 + int(ns))

    def _mkdir(self, call: Call) -> Iterator[_Step]:
        yield from self._named((call.path(0), _Inode(is_folder=True)))

    def _mkdirat(self, call: Call) -> Iterator[_Step]:
        yield from self._named((call.path(1), _Inode(is_folder=True)))

    def _link(self, call: Call) -> Iterator[_Step]:
        yield from self._linked(call.path(0), call.path(1))

    def _linkat(self, call: Call) -> Iterator[_Step]:
        yield from self._linked(call.path(1), call.path(3))

    def _linked(self, source: str, target: str) -> Iterator[_Step]:
        if (node := self.node_of(source)) is not None:
            yield from self._named((target, node))

    def _unlink(self, call: Call) -> Iterator[_Step]:
        yield from self._named((call.path(0), None))

    _rmdir = _unlink

    def _unlinkat(self, call: Call) -> Iterator[_Step]:
        yield from self._named((call.path(1), None))

    def _rename(self, call: Call) -> Iterator[_Step]:
        yield from self._renamed(call.path(0), call.path(1))

    def _renameat(self, call: Call) -> Iterator[_Step]:
        yield from self._renamed(call.path(1), call.path(3))

    _renameat2 = _renameat

    def _renamed(self, source: str, target: str) -> Iterator[_Step]:
        if (node := self.node_of(source)) is not None:
            yield from self._named((source, None), (target, node))


class _Disk:
    """What reached the disk."""

    def __init__(self) -> None:
        self._nodes: dict[int, _Inode] = {}

    def _copy(self, node: _Inode) -> _Inode:
        return self._nodes.setdefault(id(node), _Inode(is_folder=node.is_folder, mode=0o600))

    def apply(self, step: _Step, *, whole: bool, rng: random.Random) -> None:
        node = self._copy(step.node)
        if step.kind == "names":
            for folder, name, target in step.names:
                entries = self._copy(folder).entries
                if target is None:
                    entries.pop(name, None)
                else:
                    entries[name] = self._copy(target)
        elif step.kind == "write":
            data = step.data
            if not whole:
                data = data[: rng.randrange(0, len(data) + 1, _SECTOR) if data else 0]
            node.data.extend(bytes(max(0, step.offset + len(step.data) - len(node.data))))
            node.data[step.offset : step.offset + len(data)] = data
        elif step.kind == "cut":
            node.data = bytearray(bytes(node.data[: step.number]).ljust(step.number, b"\0"))
        elif step.kind == "attribute":
            node.attributes[step.key] = step.data
        elif step.kind == "mode":
            node.mode = step.number
        else:
            node.times_ns = (step.number, step.number)

    def write(self, root: _Inode, into: Path) -> None:
        """Write the tree of names that reached the disk."""
        written: dict[int, Path] = {}
        self._write_folder(self._copy(root), into, written)

    def _write_folder(self, folder: _Inode, path: Path, written: dict[int, Path]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for name, node in folder.entries.items():
            target = path / name
            if node.is_folder:
                self._write_folder(node, target, written)
            elif id(node) in written:
                os.link(written[id(node)], target)
            else:
                target.write_bytes(node.data)
                for key, value in node.attributes.items():
                    os.setxattr(target, key, value)
                if node.times_ns:
                    os.utime(target, ns=node.times_ns)
                target.chmod(node.mode)
                written[id(node)] = target
