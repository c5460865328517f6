"""Commands that read never write, and a place without a store is refused by every command."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.commands import CommandResult, sluice
from support.store_versitygw import Server, make_bucket

from sluice_protocol.errors import NoStore, StoreError, StoreMisconfigured
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey, ObjectVersion
from sluice_store import StoreMode, open_store

BATCH = "web-1/00000000000000000000000001/0"
READING = (
    *("status", "query", "query --plot", "metrics", "metrics m", "fields", "fields agent"),
    *("query dead-letters", "gaps", "batches", "conflicts list", "conflicts list --agent a"),
    *("queue status", f"explain {BATCH}", "rebuild --verify", "gc plans", "gc candidates"),
    *("maintain status", "maintain --dry-run", "reconciler status", "audit show", "audit verify"),
    *("delete --dry-run --where agent='a'", "columns list", "columns check logs resource.k text"),
)
"""Every command line that only reads a store."""
OTHERS = ("doctor", "rebuild", "reconciler --once", "gateway", "maintain --once", "spark ingest")
"""Some that write, and must not create a store."""


@dataclass(frozen=True)
class Place:
    """A place without a store, and the part of the message that names it."""

    folder: Path
    message: str


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a pass and an audit's key, as `sluice init` in a folder makes it."""
    folder = tmp_path_factory.mktemp("up")
    for words in (("init",), ("doctor",), ("reconciler", "--once"), _key(folder, "audit", "key")):
        done = sluice(*words, folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(params=["no store", "folder of up", "missing", "file", "empty", "inside"])
def place(request: pytest.FixtureRequest, tmp_path: Path, deployment: Path) -> Place:
    """Return one kind of a place without a store."""
    folder = tmp_path / "place"
    match request.param:
        case "no store":
            (folder / "notes").mkdir(parents=True)
            (folder / "notes" / "a.txt").write_text("a")
            return Place(folder, "correct the path, or create one with `sluice init --store file:")
        case "folder of up":
            return Place(
                deployment, f"there is one in .sluice: use `--store file://{deployment}/.s"
            )
        case "missing":
            return Place(folder, "create one with `sluice init --store file:")
        case "file":
            folder.write_text("a")
            return Place(folder, "this is a file, and a store is a folder: correct the path")
        case "empty":
            folder.mkdir()
            return Place(folder, "correct the path, or create one with `sluice init --store file:")
        case _:
            store = deployment / ".sluice"
            return Place(store / "authority", f"inside one: use `--store file://{store}`")


@pytest.mark.daily(12)
@pytest.mark.parametrize("command", [*READING, *OTHERS])
def test_a_place_without_a_store_stays_as_it_is(
    command: str, place: Place, tmp_path_factory: pytest.TempPathFactory, deployment: Path
) -> None:
    """Exit code 2, one line that names the place and what to do, and nothing is written."""
    above = deployment if deployment in place.folder.parents else place.folder
    above = above if above == deployment else above.parent
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    before = listing(above)
    done = _run(command, f"file://{place.folder}", elsewhere, deployment)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("sluice: no store here; "), done.stderr
    assert place.message in done.stderr
    assert done.stderr.endswith(f", path=`{place.folder}`\n")
    assert listing(above) == before


@pytest.mark.daily(8)
@pytest.mark.parametrize("command", READING)
def test_reading_writes_nothing(command: str, deployment: Path, tmp_path: Path) -> None:
    """Names, sizes, times and modes of the files of a store are those from before."""
    before = listing(deployment)
    done = _run(command, f"file://{deployment}/.sluice", tmp_path, deployment)
    assert "no store here" not in done.stderr
    assert listing(deployment) == before


@pytest.mark.parametrize(
    ("spool", "problem"),
    [
        ("spool", "did you mean file://./spool?"),
        ("file://./spool", "no spool of a gateway here; pass the value of the gateway's `--spool`"),
    ],
)
@pytest.mark.parametrize("command", ["query", "switch --acceptance s3_manifest"])
def test_a_mistyped_spool_is_not_created(
    command: str, spool: str, problem: str, deployment: Path
) -> None:
    before = listing(deployment)
    done = sluice(*command.split(), "--spool", spool, folder=deployment)
    assert done.returncode == 2
    assert problem in done.stderr
    assert listing(deployment) == before


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("query --follow --order newest", "omit `--plot`, `--order`, `--wait`"),
        ("switch --acceptance s3_manifest", "`sluice status` prints the mode that is in effect"),
    ],
)
def test_options_without_effect_are_refused(words: str, problem: str, deployment: Path) -> None:
    done = sluice(*words.split(), folder=deployment)
    assert (done.returncode, done.stdout) == (2, "")
    assert problem in done.stderr


@pytest.fixture(scope="module")
def unwritable(deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store on a read-only mount, where the test may mount; a copy in which writes fail."""
    folder = tmp_path_factory.mktemp("mount")
    if os.geteuid() != 0 or os.system(f"mount -o ro,bind {deployment} {folder} 2>&-"):  # noqa: S605
        pytest.skip("this user may not mount")
    try:
        os.system(f"mount -o remount,ro,bind {deployment} {folder}")  # noqa: S605
        yield folder
    finally:
        os.system(f"umount {folder}")  # noqa: S605


@pytest.mark.daily(8)
@pytest.mark.parametrize("command", READING)
def test_a_read_only_mount_is_read(
    command: str, deployment: Path, unwritable: Path, tmp_path: Path
) -> None:
    """A command prints what it prints for the same store on a mount that can be written."""
    done = _run(command, f"file://{unwritable}/.sluice", tmp_path, deployment)
    if command == "status":
        assert "the directory is read-only: mount it writable" in done.stdout
        return
    assert "read-only" not in done.stdout + done.stderr
    other = _run(command, f"file://{deployment}/.sluice", tmp_path, deployment)
    assert done.returncode == other.returncode, done
    assert done.stdout.count("\n") == other.stdout.count("\n")


@pytest.mark.daily(8)
@pytest.mark.parametrize("command", READING)
def test_a_store_is_read_while_every_write_fails(
    command: str, deployment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a full disk or without inodes, and for a user who may only read."""
    refuse_writes(monkeypatch, deployment)
    done = _run(command, f"file://{deployment}/.sluice", tmp_path, deployment)
    assert "a test refuses writes" not in done.stdout + done.stderr, done.stderr


def refuse_writes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let every call of the operating system that changes something in a folder fail."""
    real_open = os.open

    def checked_open(path: "str | Path", flags: int, *rest: int, **named: int) -> int:
        if str(path).startswith(str(folder)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise PermissionError(13, "a test refuses writes", str(path))
        return real_open(path, flags, *rest, **named)

    def refused(*given: object, **_: object) -> None:
        if isinstance(given[0], int) or str(given[0]).startswith(str(folder)):
            raise PermissionError(13, "a test refuses writes")

    monkeypatch.setattr(os, "open", checked_open)
    for name in ("mkdir", "link", "rename", "replace", "unlink", "utime", "fchmod", "fsync"):
        monkeypatch.setattr(os, name, refused)


async def test_a_store_that_is_opened_for_reading_refuses_writes(deployment: Path) -> None:
    url = f"file://{deployment}/.sluice"
    key = ObjectKey("decisions/v1/x")

    before = listing(deployment)
    async with open_store(url, StoreMode.READ) as store:
        found = await store.get(ObjectKey("authority/v1/settings.json"))
        assert isinstance(found, Found)
        for write in (
            store.create(key, b"a"),
            store.overwrite(key, b"a"),
            store.replace(key, b"a", if_match=found.info.etag),
            store.delete(key, found.info.incarnation or ObjectVersion("")),
        ):
            with pytest.raises(StoreMisconfigured, match="opened for reading"):
                await write
    assert listing(deployment) == before


@pytest.mark.parametrize("below", ["", "/x", "/.sluice/x", "/.sluice/accepted/v1"])
def test_init_refuses_a_folder_inside_or_around_a_store(below: str, deployment: Path) -> None:
    before = listing(deployment)
    done = sluice("init", "--store", f"file://{deployment}{below}", folder=deployment)
    if below == "/x":  # next to the store
        assert done.returncode == 0
        shutil.rmtree(deployment / "x")
        return
    assert done.returncode == 2
    which = "around" if not below else "inside"
    assert f"cannot create a store {which} another one" in done.stderr
    assert f"store=`{deployment}/.sluice`" in done.stderr
    assert listing(deployment) == before


def test_up_refuses_a_folder_inside_a_store(deployment: Path) -> None:
    inside = deployment / ".sluice" / "accepted"
    before = listing(deployment)
    done = sluice("up", "--store", f"file://{inside}", "--home", f"{deployment}/home")
    assert done.returncode == 2
    assert "cannot create a store inside another one" in done.stderr
    shutil.rmtree(deployment / "home", ignore_errors=True)
    assert listing(deployment) == before


def test_a_store_that_moves_away_is_not_created_again(tmp_path: Path) -> None:
    """An open store reports where it was, and continues when it is back."""
    root, away = tmp_path / "store", tmp_path / "away"
    assert sluice("init", "--store", f"file://{root}").returncode == 0
    key = ObjectKey("decisions/v1/x")

    async def run() -> None:
        async with open_store(f"file://{root}") as store:
            root.rename(away)
            for use in (store.create(key, b"a"), store.get(key), store.head(key)):
                with pytest.raises(StoreError, match="move it back"):
                    await use
            with pytest.raises(NoStore):
                async with open_store(f"file://{root}"):
                    pass
            assert not root.exists()
            away.rename(root)
            await store.create(key, b"a")
            assert isinstance(await store.get(key), Found)

    asyncio.run(run())


@pytest.fixture(scope="module")
def bucket_url(moto: Server) -> str:
    """Return the URL of an empty prefix of a bucket."""
    url = moto.url("bucket", "some/prefix")
    asyncio.run(make_bucket(url))
    return url


@pytest.mark.daily(8)
@pytest.mark.parametrize("command", READING)
def test_a_bucket_without_an_authority_is_no_store(
    command: str, bucket_url: str, tmp_path: Path, deployment: Path
) -> None:
    done = _run(command, bucket_url, tmp_path, deployment)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert done.stderr.startswith("sluice: no store here; no authority in this store"), done.stderr


def listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return every path below a folder, with its size, its time and its mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_mode)
    return found


def _key(folder: Path, *words: str) -> tuple[str, ...]:
    return (*words, "--key-file", f"{folder}/auditor.pem")


def _run(command: str, url: str, folder: Path, deployment: Path) -> CommandResult:
    words = [*command.split(), "--store", url]
    if words[0] == "audit":
        words = list(_key(deployment, *words))
    return sluice(*words, folder=folder)
