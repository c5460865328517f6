"""Why a directory store cannot be written: the reasons of a failed write, before one fails."""

import errno
from pathlib import Path

import pytest

from sluice_protocol.errors import BadUsage, StoreError
from sluice_store.local.disk_space import (
    DiskSpace,
    describe_disk_problem,
    read_disk_space,
    store_error,
)
from sluice_store.url import read_disk_problem

NEEDED = 1000


def space(*, size: int = NEEDED, files: int | None = 1, read_only: bool = False) -> DiskSpace:
    return DiskSpace(available_bytes=size, available_files=files, read_only=read_only)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (space(), ""),
        (space(files=None), ""),
        (space(size=NEEDED - 1), "the disk is full: free space or move the store, available_bytes"),
        (space(size=0, files=0), "the disk is full: free space or move the store, available_bytes"),
        (space(files=0), "the disk is full: free space or move the store, available_files=`0`"),
        (space(read_only=True), "the directory is read-only: mount it writable"),
        (space(size=0, read_only=True), "the directory is read-only: mount it writable"),
    ],
)
def test_each_lack_has_its_reason(found: DiskSpace, problem: str) -> None:
    reason = describe_disk_problem(found, NEEDED)
    assert reason.startswith(problem)
    assert bool(reason) == bool(problem)


@pytest.mark.parametrize(
    ("number", "found"), [(errno.ENOSPC, space(size=0)), (errno.EROFS, space(read_only=True))]
)
def test_the_reason_is_that_of_a_failed_write(number: int, found: DiskSpace) -> None:
    """`/readyz` of a gateway reports the error of the write."""
    failed = store_error(OSError(number, "why"), "create", "key")
    assert describe_disk_problem(found, NEEDED).startswith(failed.reason)


def test_a_directory_is_read_and_a_bucket_is_not(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    assert read_disk_problem(url, 1) == ""
    available = read_disk_space(tmp_path).available_bytes
    assert read_disk_problem(url, 2 * available + 1).startswith("the disk is full")
    assert read_disk_problem("s3://bucket/prefix", 1 << 62) == ""
    with pytest.raises(StoreError):
        read_disk_problem(f"{url}/missing", 1)
    with pytest.raises(BadUsage):
        read_disk_problem("file://relative", 1)
