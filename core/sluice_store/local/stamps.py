"""Stamps of the local store: strictly rising for every process and across crashes.

A stamp is at once Last-Modified, generation and ETag. Its file holds the highest stamp given and a
bound that is durable ahead of it: after a crash of the machine the highest stamp may have been
lost, so the first opener of a new boot starts from the bound (ADR 0010).
"""

import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sluice_protocol.clock import Clock
from sluice_protocol.errors import StoreMisconfigured
from sluice_protocol.units import NS_PER_S, UnixNs

_RECORD: Final = struct.Struct("<8sQQ36s")
_MAGIC: Final = b"SLUICEC1"
_RESERVE_NS: Final = NS_PER_S
"""How far the durable bound runs ahead: one fsync a second, one second lost at a crash."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def _read_boot_id() -> bytes:
    """Gives the id of this boot, or nothing where the system has none: then no boot is trusted."""
    try:
        return _BOOT_ID.read_bytes().strip()[:36]
    except OSError:
        return b""


class StampClock:
    """Gives stamps under an flock on one small file.

    A forked child would share the lock with its parent, so every process opens its own.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Opens or makes the file and takes over what earlier boots may have given out."""
        self._path = path
        self._clock = clock
        self._threads = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._boot = _read_boot_id().ljust(36, b"\0")
        try:
            self._take_over()
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def next_ns(self) -> UnixNs:
        """Gives a stamp above every stamp and time that any process was given before."""
        with self._locked():
            highest, reserved = self._read()
            return self._give(max(self._clock.now_ns(), highest + 1), reserved)

    def now_ns(self) -> UnixNs:
        """Gives the store's time: it never falls, whatever the machine's clock does."""
        with self._locked():
            highest, reserved = self._read()
            return self._give(max(self._clock.now_ns(), highest), reserved)

    def _give(self, stamp: int, reserved: int) -> UnixNs:
        if stamp > reserved:
            self._write(stamp, stamp + _RESERVE_NS)
            os.fsync(self._fd)
        else:
            self._write(stamp, reserved)
        return UnixNs(stamp)

    def _take_over(self) -> None:
        with self._locked():
            if os.fstat(self._fd).st_size == 0:
                self._write(0, 0)
                os.fsync(self._fd)
                return
            highest, reserved = self._read()
            boot = self._read_raw()[3]
            if boot != self._boot or not boot.strip(b"\0"):
                self._write(max(highest, reserved), reserved)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _read(self) -> tuple[int, int]:
        _, highest, reserved, _ = self._read_raw()
        return highest, reserved

    def _read_raw(self) -> tuple[bytes, int, int, bytes]:
        raw = os.pread(self._fd, _RECORD.size, 0)
        if len(raw) != _RECORD.size or not raw.startswith(_MAGIC):
            raise StoreMisconfigured(
                "open", str(self._path), "the clock file is damaged: restore it from a backup"
            )
        magic, highest, reserved, boot = _RECORD.unpack(raw)
        return magic, highest, reserved, boot

    def _write(self, highest: int, reserved: int) -> None:
        os.pwrite(self._fd, _RECORD.pack(_MAGIC, highest, reserved, self._boot), 0)
