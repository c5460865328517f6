"""A store or spool of another version of sluice: one line each, and nothing is changed."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard
from support.commands import sluice
from support.local_deployment import clean_environment
from support.reconciler_seed import accept_logs
from support.sluice_process import run_process

from sluice_agent.spool.format import (
    FORMAT_VERSION,
    EntryHeader,
    SpoolState,
    encode_spool_entry,
    encode_state,
)
from sluice_protocol.errors import describe_version
from sluice_protocol.journals import GatewayProcess, process_name, registration_key
from sluice_protocol.keys import digest_of
from sluice_protocol.maintenance import TaskRecord, task_record_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import UnixNs
from sluice_store.local import open_local_store

UNRELEASED, NEWER = 0, 9


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store that contains one object of each structure, all readable."""
    folder = tmp_path_factory.mktemp("made")

    async def accept(seq: int) -> None:
        async with open_local_store(folder / ".sluice") as store:
            await accept_logs(store, ["a line"], seq=seq, at_ns=time.time_ns())

    async def add_records() -> None:
        name = process_name(UnixNs(time.time_ns()), "01ARZ3NDEKTSV4RRFFQ69G5FAV")
        gateway = GatewayProcess(
            collector_id="gw",
            process=name,
            acceptance="s3_manifest",
            started_at_unix_ns=time.time_ns(),
        )
        task = TaskRecord(task="ingest", revision=1, nonce="n")
        async with open_local_store(folder / ".sluice") as store:
            await store.create(task_record_key("ingest"), encode_record(task))
            await store.create(registration_key(name), encode_record(gateway))

    assert sluice("init", "--lanes", "1", folder=folder).returncode == 0
    assert sluice("doctor", folder=folder).returncode == 0
    asyncio.run(accept(0))
    for command in (
        "reconciler --once",
        "delete --to 30d",
        "audit run --key-file auditor.pem",
    ):
        assert sluice(*command.split(), folder=folder).returncode == 0
    asyncio.run(accept(1))
    asyncio.run(add_records())
    (folder / "principals.toml").touch()
    return folder


@dataclass(frozen=True)
class Structure:
    """A stored structure.

    Attributes:
        what: Its name in the message.
        place: Its file below the store.
        stated: Its version as its bytes contain it, with `%d` or `%c` for the version.
        known: The version of this build.
        command: A command that reads it and refuses to continue.
        code: The exit code of the command.
        compressed: Whether its bytes are a zstd frame.
    """

    what: str
    place: str
    stated: bytes
    known: int
    command: str
    code: int = 1
    compressed: bool = False

    def change(self, folder: Path, version: int) -> Path:
        """Change the version of the object in a copy of the store; return its path."""
        path = min((folder / ".sluice").glob(self.place))
        body = path.read_bytes()
        if self.compressed:
            body = zstandard.ZstdDecompressor().decompress(body)
        assert self.stated % self.known in body
        body = body.replace(self.stated % self.known, self.stated % version)
        path.write_bytes(zstandard.ZstdCompressor().compress(body) if self.compressed else body)
        return path


AUTHORITY = Structure(
    "sluice.authority", "authority/v1/settings.json", b"sluice.authority.v%d", 1, ""
)
LANE = Structure(
    "lane state", "reconciler/v1/lanes/*", b"_lane.v%d", 6, "reconciler --once", compressed=True
)
REGISTER = Structure("queue register", "queue/v1/*/manifest", b"LMQ1%c\0", 3, "queue status")
WORK_LIST = Structure(
    "lightmetrics.work_list", "manifests/**/*.json", b"work_list.v%d", 1, "query -q line", 0
)
MANIFEST = Structure(
    "lightmetrics.accepted_batch",
    "accepted/**/*0001.json",
    b"accepted_batch.v%d",
    1,
    "reconciler --once",
)
REGISTRATION = Structure(
    "sluice.gateway_process",
    "gateways/v1/processes/*",
    b"gateway_process.v%d",
    1,
    "reconciler --once",
    0,
)
TASK = Structure("sluice.maintenance_task", "maintain/**/*.json", b"task.v%d", 1, "maintain status")
REFUSED = [
    LANE,
    REGISTER,
    TASK,
    Structure("sluice.doctor_stored", "doctor/v1/results/*", b"doctor_stored.v%d", 1, "status"),
    Structure("sluice.delete", "deletes/v1/*", b"sluice.delete.v%d", 1, "query -q line"),
    Structure(
        "sluice.audit_certificate",
        "audit/v1/chain/*",
        b"audit_certificate.v%d",
        2,
        "audit run --key-file auditor.pem",
    ),
    Structure("clock file", ".sluice/clock", b"SLUICEC%d", 1, "reconciler --once", 3),
]


def copy(made: Path, folder: Path) -> Path:
    shutil.copytree(made, folder, dirs_exist_ok=True)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the files of a folder, without the locks and the clock, which every open may write."""
    found = (one for one in folder.rglob("*") if one.is_file())
    kept = (one for one in found if one.parent.name != "locks" and one.name != "clock")
    return {one: one.read_bytes() for one in kept}


@pytest.mark.daily(3)
@pytest.mark.parametrize("version", [UNRELEASED, NEWER])
@pytest.mark.parametrize("one", REFUSED, ids=lambda one: one.what)
def test_a_command_reports_it_in_one_line_and_changes_nothing(
    made: Path, tmp_path: Path, one: Structure, version: int
) -> None:
    folder = copy(made, tmp_path)
    path = one.change(folder, version)
    before, stored = contents(folder), path.read_bytes()
    done = sluice(*one.command.split(), folder=folder)
    assert done.returncode == one.code, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("sluice: "))
    assert describe_version(one.what, version, one.known) in line
    assert path.name in line or "#0" in line
    assert "Traceback" not in done.stderr
    assert path.read_bytes() == stored
    assert contents(folder) == before


@pytest.mark.daily(4)
@pytest.mark.parametrize("version", [UNRELEASED, NEWER])
@pytest.mark.parametrize("one", [LANE, REGISTER], ids=lambda one: one.what)
@pytest.mark.parametrize("command", ["reconciler --once", "queue status", "status", "rebuild"])
def test_neither_a_reconciler_nor_a_rebuild_replaces_a_lane(
    made: Path, tmp_path: Path, one: Structure, command: str, version: int
) -> None:
    folder = copy(made, tmp_path)
    path = one.change(folder, version)
    stored = path.read_bytes()
    done = sluice(*command.split(), folder=folder)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("sluice: "))
    assert describe_version(one.what, version, one.known) in line
    assert path.read_bytes() == stored


@pytest.mark.daily(2)
@pytest.mark.parametrize("version", [UNRELEASED, NEWER])
@pytest.mark.parametrize("one", [LANE, REGISTER, WORK_LIST], ids=lambda one: one.what)
def test_a_query_is_partial(made: Path, tmp_path: Path, one: Structure, version: int) -> None:
    """It reports the list or the register; a batch in a lane that it does not read is missing."""
    folder = copy(made, tmp_path)
    one.change(folder, version)
    before = contents(folder)
    done = sluice("query", "-q", "line", folder=folder)
    assert done.returncode == 0
    assert "partial: " in done.stderr
    assert (describe_version(one.what, version, one.known) in done.stderr) is (one is not LANE)
    assert contents(folder) == before


@pytest.mark.parametrize("version", [UNRELEASED, NEWER])
def test_a_manifest_is_held(made: Path, tmp_path: Path, version: int) -> None:
    """The log names it, and so does `explain`; no queue gets the batch."""
    folder = copy(made, tmp_path)
    path = MANIFEST.change(folder, version)
    stored = path.read_bytes()
    sentence = describe_version(MANIFEST.what, version, MANIFEST.known)
    done = sluice("reconciler", "--once", folder=folder)
    assert done.returncode == 1
    (held,) = (line for line in done.stderr.splitlines() if "batch_held" in line)
    assert sentence in held
    explained = sluice("explain", "host-1/b1/1-1", folder=folder)
    assert (explained.returncode, sentence in explained.stdout) == (1, True)
    assert path.read_bytes() == stored


@pytest.mark.parametrize("version", [UNRELEASED, NEWER])
def test_a_registration_of_a_gateway_is_logged(made: Path, tmp_path: Path, version: int) -> None:
    """Its journal proves nothing, so the published time does not pass it."""
    folder = copy(made, tmp_path)
    path = REGISTRATION.change(folder, version)
    stored = path.read_bytes()
    done = sluice(*REGISTRATION.command.split(), folder=folder)
    assert done.returncode == REGISTRATION.code
    (line,) = (line for line in done.stderr.splitlines() if "registration_unreadable" in line)
    assert describe_version(REGISTRATION.what, version, REGISTRATION.known) in line
    assert path.read_bytes() == stored


@pytest.fixture(scope="module", params=[UNRELEASED, NEWER])
def other_authority(
    request: pytest.FixtureRequest, made: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int]:
    folder = copy(made, tmp_path_factory.mktemp("authority"))
    AUTHORITY.change(folder, request.param)
    return folder, request.param


@pytest.mark.daily(12)
@pytest.mark.parametrize(
    "command",
    [
        *("reconciler --once", "query -q x", "status", "rebuild", "init", "audit run"),
        *("queue status", "switch local_spool --spool-writer x"),
        *("gaps", "batches", "conflicts list", "doctor", "explain host-1/b1/0-1"),
        *("delete --to 30d", "audit show", "gc noncurrent --dry-run"),
        *("gc stop 01M7X2Z6Q0000000000000000A --reason x",),
    ],
)
def test_a_command_reports_a_store_of_another_version(
    other_authority: tuple[Path, int], command: str
) -> None:
    folder, version = other_authority
    before = contents(folder)
    done = sluice(*command.split(), folder=folder)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sluice: ")
    assert describe_version(AUTHORITY.what, version, AUTHORITY.known) in done.stderr
    assert contents(folder) == before


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "command",
    [
        "gateway --listen 127.0.0.1:0 --principals principals.toml",
        "maintain --once",
        "console --listen 127.0.0.1:0",
    ],
)
def test_a_service_reports_it_and_ends(other_authority: tuple[Path, int], command: str) -> None:
    folder, version = other_authority
    words = [sys.executable, "-m", "sluice_cli", *command.split()]
    done = run_process(words, cwd=folder, env=clean_environment(), text=True)
    assert done.returncode == 1
    sentence = describe_version(AUTHORITY.what, version, AUTHORITY.known)
    assert sentence in done.stderr.splitlines()[-1]


def _write_state(spool: Path, version: int) -> str:
    (spool / "state.json").write_bytes(encode_state(SpoolState(version=version, through=7)))
    return "state of the spool"


def _write_batch(spool: Path, version: int) -> str:
    frame = b"x"
    header = EntryHeader(
        version=version, order=7, agent_id="a", boot_id="b", seq_start=0, seq_end=0, kind="logs",
        frame_bytes=1, frame_sha256=digest_of(frame), sealed_at_unix_ns=1,
    )  # fmt: skip
    (spool / "ready" / header.name).write_bytes(b"".join(encode_spool_entry(header, frame)))
    return "spool entry"


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
@pytest.mark.parametrize("write", [_write_state, _write_batch])
def test_an_agent_leaves_a_spool_of_another_version_as_it_is(
    tmp_path: Path, write: Callable[[Path, int], str], version: int
) -> None:
    """It must neither park batches nor read files again."""
    (tmp_path / "spool" / "ready").mkdir(parents=True)
    what = write(tmp_path / "spool", version)
    before = contents(tmp_path / "spool")
    run = ("agent", "run", "--gateway", "http://127.0.0.1:1", "--agent-id", "a")
    done = sluice(*run, "--spool", "spool", "--paths", "*.log", "--once", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert describe_version(what, version, FORMAT_VERSION) in done.stderr
    assert "location=`spool/" in done.stderr
    assert before.items() <= contents(tmp_path / "spool").items()
