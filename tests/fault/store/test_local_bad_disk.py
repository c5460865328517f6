"""A local store on a failing disk: typed errors, and no partial object."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.store_worker import TESTS

from sluice_protocol.errors import BadUsage, StoreDenied, StoreError, StoreMisconfigured
from sluice_protocol.outcomes import Applied, NotFound
from sluice_protocol.units import ObjectKey
from sluice_store import StoreMode, open_store
from sluice_store.conformance import collect_keys
from sluice_store.local import open_local_store

KEY = ObjectKey("a/key")

FULL = """
import asyncio, sys
from pathlib import Path
from sluice_protocol.errors import StoreMisconfigured
from sluice_protocol.outcomes import Applied
from sluice_store.conformance import collect_keys
from sluice_store.local import open_local_store

async def run(root):
    async with open_local_store(root) as store:
        made = 0
        try:
            for number in range(100):
                assert isinstance(await store.create(f"fill/{number}", b"x" * 65536), Applied)
                made += 1
        except StoreMisconfigured as error:
            assert "disk is full" in str(error), error
        listed = await collect_keys(store, "fill/")
        assert 0 < made < 100 and len(listed) == made, (made, len(listed))
        assert {one.size_bytes for one in listed} == {65536}
        assert list((root / ".sluice" / "tmp").iterdir()) == []
        await store.delete(listed[0].key, str(listed[0].last_modified_ns))
        assert isinstance(await store.create("small", b"y"), Applied)

asyncio.run(run(Path(sys.argv[1])))
"""
READ_ONLY = """
import asyncio, sys
from pathlib import Path
from sluice_protocol.errors import StoreMisconfigured
from sluice_store.local import open_local_store

async def run(root):
    try:
        async with open_local_store(root):
            raise SystemExit("opened")
    except StoreMisconfigured as error:
        assert "read-only" in str(error), error

asyncio.run(run(Path(sys.argv[1])))
"""


def _in_mount(options: str, script: str, root: Path) -> None:
    """Run a script on a separate file system, in a mount namespace."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare(1) to mount a small file system")
    root.mkdir()
    mount = f'mount -t tmpfs -o {options} none "{root}" && exec "$@"'
    flags = ["-m"] if os.geteuid() == 0 else ["-rm"]
    probe = subprocess.run(["unshare", *flags, "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    command = ["unshare", *flags, "sh", "-c", mount, "sh", sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, check=False, capture_output=True, cwd=TESTS)
    assert done.returncode == 0, done.stderr.decode()


def test_local_full_disk_is_named(tmp_path: Path) -> None:
    """A full disk refuses the write, keeps no partial object, and works again after a delete."""
    _in_mount("size=1m", FULL, tmp_path / "full")


def test_local_read_only_disk_is_named(tmp_path: Path) -> None:
    """A read-only directory is refused when the store is opened."""
    _in_mount("ro", READ_ONLY, tmp_path / "ro")


def _open(path: Path) -> None:
    async def run() -> None:
        async with open_local_store(path):
            pass

    asyncio.run(run())


def test_local_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A path that is a file is refused when the store is opened."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    with pytest.raises(StoreMisconfigured, match="check the path"):
        _open(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_local_directory_without_permission_is_denied(tmp_path: Path) -> None:
    """A directory without permission is refused when the store is opened."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreDenied):
        _open(tmp_path / "inside")


def test_local_clock_damaged_while_the_store_is_open_is_refused(tmp_path: Path) -> None:
    """A truncated clock file is refused until the next open rebuilds it."""

    async def run() -> None:
        async with open_local_store(tmp_path) as store:
            (tmp_path / ".sluice" / "clock").write_bytes(b"cut")
            with pytest.raises(StoreMisconfigured, match="clock file"):
                await store.create(ObjectKey("a"), b"x")

    asyncio.run(run())
    _open(tmp_path)


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a//b", "a/", "../a", "a/./b", "a/../../b", ".sluice/clock", "a\0b", "x" * 300],
)
async def test_local_key_stays_inside(key: str, tmp_path: Path) -> None:
    """No key is outside the directory, in the hidden folder, or longer than a file name."""
    async with open_local_store(tmp_path) as store:
        for call in (store.create(ObjectKey(key), b"x"), store.get(ObjectKey(key))):
            with pytest.raises(StoreError):
                await call


@pytest.mark.parametrize("prefix", ["../", "/", "/etc/", ".sluice/", "a/../../"])
async def test_local_listing_stays_inside(prefix: str, tmp_path: Path) -> None:
    """No prefix lists what is outside the store, or its hidden folder."""
    async with open_local_store(tmp_path / "store") as store:
        await store.create(KEY, b"x")
        assert await collect_keys(store, prefix) == []


@pytest.mark.parametrize(
    "url", ["file:/x", "file://host/x", "ftp://x", "s3://", "s3://a:b@c/", "x"]
)
def test_open_store_refuses_other_urls(url: str) -> None:
    """A malformed store URL is bad usage."""

    async def run() -> None:
        async with open_store(url, StoreMode.CREATE):
            pass

    with pytest.raises(BadUsage):
        asyncio.run(run())


async def test_local_edited_file_has_no_checksum(tmp_path: Path) -> None:
    """A file that was edited is another state without a verified sha256."""
    async with open_local_store(tmp_path) as store:
        made = await store.create(KEY, b"good")
        assert isinstance(made, Applied)
        (tmp_path / KEY).write_bytes(b"evil")
        seen = await store.head(KEY)
        assert not isinstance(seen, NotFound)
        assert seen.sha256 is None
        assert seen.etag != made.etag
