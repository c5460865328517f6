"""List, drop and retry parked batches; the agent may be running.

A running agent adds files to `parked/`, removes those of decided conflicts, and only removes files
from `again/`. Each operation here is one rename or one removal, so no lock is needed.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice_agent.errors import CorruptEntry
from sluice_agent.spool.directory import read_entry_header
from sluice_agent.spool.disk import Disk, RealDisk
from sluice_agent.spool.format import ParkedReason, is_entry
from sluice_protocol.errors import UNREADABLE_JSON, BadUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedBatch:
    """A parked batch.

    Attributes:
        spool: The directory of the spool that contains it; `forward` has several.
        name: The name for `drop` and `retry`.
        reason: The code of the gateway's response, or its status.
        answer: The body of the response.
    """

    spool: str
    name: str
    reason: str
    gateway: str
    status: int
    parked_at_unix_ns: int
    answer: str
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_bytes: int
    frame_sha256: str


def list_parked(spool: Path) -> tuple[ParkedBatch, ...]:
    """Return every parked batch of a spool, or of all slots of a `forward` spool.

    Raises:
        BadUsage: There is no spool at this path, or a batch in it is corrupt.
    """
    disk = RealDisk()
    return tuple(
        _parked(disk, part, name, size_bytes)
        for part in _parts(spool)
        for name, size_bytes in disk.list(part / "parked")
        if is_entry(name)
    )


def drop_parked(spool: Path, names: tuple[str, ...], *, every: bool) -> tuple[str, ...]:
    """Remove parked batches permanently."""
    disk = RealDisk()
    for one in (chosen := _chosen(spool, names, every=every)):
        disk.remove(_place(one))
        disk.remove(_beside(one))
    return tuple(one.name for one in chosen)


def retry_parked(spool: Path, names: tuple[str, ...], *, every: bool) -> tuple[str, ...]:
    """Return parked batches to the agent, which sends the same bytes again."""
    disk = RealDisk()
    for one in (chosen := _chosen(spool, names, every=every)):
        with contextlib.suppress(FileNotFoundError):  # the agent removed it after a decision
            disk.rename(_place(one), Path(one.spool) / "again" / one.name)
        disk.remove(_beside(one))
        disk.sync_dir(Path(one.spool) / "again")
    return tuple(one.name for one in chosen)


def _parts(spool: Path) -> list[Path]:
    own = [spool] if (spool / "parked").is_dir() else []
    slots = sorted(part.parent for part in spool.glob("[0-9][0-9]/parked") if part.is_dir())
    if not own + slots:
        raise BadUsage(f"no spool at this path: set --spool, path=`{spool}`")
    return own + slots


def _chosen(spool: Path, names: tuple[str, ...], *, every: bool) -> list[ParkedBatch]:
    found = list_parked(spool)
    if not names and not every:
        raise BadUsage("no batch named: use the names of `sluice agent parked list`, or --all")
    unknown = set(names) - {one.name for one in found}
    if unknown:
        raise BadUsage(f"no such parked batch, name=`{min(unknown)}`")
    return [one for one in found if every or one.name in names]


def _place(one: ParkedBatch) -> Path:
    return Path(one.spool) / "parked" / one.name


def _beside(one: ParkedBatch) -> Path:
    return Path(one.spool) / "parked" / f"{one.name}.json"


def _parked(disk: Disk, spool: Path, name: str, size_bytes: int) -> ParkedBatch:
    path = spool / "parked" / name
    try:
        header = read_entry_header(disk, path, size_bytes)
    except CorruptEntry as error:
        raise BadUsage(f"parked batch is corrupt: {error.reason}, path=`{path}`") from error
    reason = read_reason(disk, path.with_name(f"{name}.json"))
    return ParkedBatch(
        spool=str(spool),
        name=name,
        reason=reason.reason,
        gateway=reason.gateway,
        status=reason.status,
        parked_at_unix_ns=reason.parked_at_unix_ns,
        answer=reason.answer,
        agent_id=header.agent_id,
        boot_id=header.boot_id,
        seq_start=header.seq_start,
        seq_end=header.seq_end,
        frame_bytes=header.frame_bytes,
        frame_sha256=header.frame_sha256,
    )


def read_reason(disk: Disk, path: Path) -> ParkedReason:
    """Return why a batch was parked; `unknown` if that was not stored completely."""
    try:
        return msgspec.json.decode(disk.read(path), type=ParkedReason)
    except (OSError, *UNREADABLE_JSON):
        return ParkedReason(reason="unknown", gateway="", status=0, parked_at_unix_ns=0)
