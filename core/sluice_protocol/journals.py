"""Acceptance journals, and how far discovery is complete.

A gateway process registers before it accepts connections, and then appends journal objects. Each
object is created once and contains copies of accepted manifests. An entry is a hint for discovery,
never a proof that a manifest exists. What a journal proves is its time: an object that is
complete through t, and the objects before it, name every batch that this process acknowledged
before t, by the store's clock.

    gateways/v1/processes/<started, 20 digits>-<ULID>.json               the registration
    gateways/v1/journals/<started, 20 digits>-<ULID>/<number, 12 digits>.ndjson

`decide_frontier` is the only rule that turns journals into a time. The reconciler stores it,
and queries read it to report what an answer may be missing:

- `reconciler/v1/discovery.json`: every batch that a gateway acknowledged before an instant of the
  store's clock is enqueued in every queue, or has a hold record. Swapped as a whole.
- `reconciler/v1/held/<sha256 of the held key, hex>.json`: a hold record. It never stops a
  batch and is never a reason to skip one.

Source: ADR 22.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

import msgspec

from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import GATEWAY_JOURNALS, GATEWAY_PROCESSES, RECONCILER
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs

JOURNAL_INTERVAL_S: Final = 1.0
"""Pause between two journal objects of a process that has something to report, by default."""
JOURNAL_INTERVAL_S_MAX: Final = 5.0
"""Longest such pause; with it, a process still reports within `HEARTBEAT_S`."""
HEARTBEAT_S: Final = 5.0
"""Longest time between two journal objects of a process that works, idle or not."""
LATE_S: Final = 10.0
"""Age of the newest object of a process from which it is late: two heartbeats. Answers then name
the gateway, and a reconciler looks for batches that the process has not reported."""
FENCE_S: Final = 60.0
"""A process responds 200 only while the write of its newest journal object began at most this long
ago, by a clock that also runs while the machine is suspended."""
JOURNAL_REPLACED_AFTER_S: Final = 120.0
"""Age of the newest object of a process from which a full pass replaces its journal. It is
`FENCE_S` plus a margin for clocks that run at different rates and for times in whole seconds."""

_PROCESS: Final = re.compile(r"[0-9]{20}-[0-9A-HJKMNP-TV-Z]{26}")
_REGISTRATION: Final = re.compile(rf"{GATEWAY_PROCESSES}({_PROCESS.pattern})\.json")
_JOURNAL: Final = re.compile(rf"{GATEWAY_JOURNALS}({_PROCESS.pattern})/([0-9]{{12}})\.ndjson")


class GatewayProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of a gateway process, created once, before it accepts connections.

    Attributes:
        process: `<started, 20 digits>-<ULID>`; the last part of the key.
        started_at_unix_ns: The store's clock before the registration was written. For a spool, a
            time before which every batch that the spool acknowledged is in the authority; it may be
            much older than the registration.
    """

    schema: Literal["sluice.gateway_process.v1"] = "sluice.gateway_process.v1"
    collector_id: str
    process: str
    acceptance: AcceptanceMode
    started_at_unix_ns: int


class JournalHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a journal object; each further line is an accepted manifest.

    Attributes:
        number: Its number, from 1, without gaps.
        complete_through_unix_ns: This object and the ones before it name every batch that the
            process acknowledged before this time of the store's clock. Readers bound it by the
            Last-Modified of the object (`bounded_through_ns`).
        closed: Whether the process stopped in order: it acknowledges nothing after this object.
    """

    schema: Literal["sluice.acceptance_journal.v1"] = "sluice.acceptance_journal.v1"
    process: str
    number: int
    complete_through_unix_ns: int
    closed: bool = False
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalKey:
    """The two parts of the key of a journal object."""

    process: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A decoded journal object."""

    header: JournalHeader
    manifests: tuple[AcceptedManifest, ...]


def process_name(started_ns: UnixNs, ulid: str) -> str:
    """Return the name of a gateway process in keys."""
    return f"{started_ns:020d}-{ulid}"


def started_ns_of(process: str) -> UnixNs:
    """Return the time in the name of a process."""
    if _PROCESS.fullmatch(process) is None:
        raise InvalidRecord(process, "name of a gateway process is not <started>-<ulid>")
    return UnixNs(int(process[:20]))


def registration_key(process: str) -> ObjectKey:
    """Return the key of the registration of a process."""
    return ObjectKey(f"{GATEWAY_PROCESSES}{process}.json")


def journal_prefix(process: str) -> str:
    """Return the prefix of every journal object of a process."""
    return f"{GATEWAY_JOURNALS}{process}/"


def journal_key(process: str, number: int) -> ObjectKey:
    """Return the key of a journal object."""
    return ObjectKey(f"{journal_prefix(process)}{number:012d}.ndjson")


def parse_registration_key(key: str) -> str:
    """Return the process that a registration key names."""
    found = _REGISTRATION.fullmatch(key)
    if found is None:
        raise InvalidRecord(key, f"key is not of the form {GATEWAY_PROCESSES}<started>-<ulid>.json")
    return found[1]


def parse_journal_key(key: str) -> JournalKey:
    """Return the process and number that the key of a journal object names."""
    found = _JOURNAL.fullmatch(key)
    if found is None:
        raise InvalidRecord(
            key, f"key is not of the form {GATEWAY_JOURNALS}<process>/<number>.ndjson"
        )
    return JournalKey(process=found[1], number=int(found[2]))


def encode_journal(header: JournalHeader, manifests: Iterable[bytes]) -> bytes:
    """Return the bytes of a journal object; manifests are the bytes of `encode_record`."""
    lines = [msgspec.json.encode(header, order="sorted"), *manifests]
    return b"\n".join(lines) + b"\n"


def decode_journal_header(key: ObjectKey, start: bytes) -> JournalHeader:
    """Decode the first line of a journal object, which `start` contains as a whole."""
    place = parse_journal_key(key)
    header = decode_record(key, start.partition(b"\n")[0], JournalHeader)
    if (header.process, header.number) != (place.process, place.number):
        raise InvalidRecord(key, "header of the journal object names another object")
    return header


def bounded_through_ns(header: JournalHeader, written_ns: UnixNs) -> UnixNs:
    """Return the time through which a journal object proves completeness.

    A process can still acknowledge batches after it wrote an object. A time that is later than the
    Last-Modified of the object therefore proves nothing beyond it.
    """
    return min(UnixNs(header.complete_through_unix_ns), written_ns)


def decode_journal(key: ObjectKey, body: bytes) -> Journal:
    """Decode a journal object."""
    first, *lines = body.removesuffix(b"\n").split(b"\n")
    header = decode_journal_header(key, first)
    if header.batches != len(lines):
        raise InvalidRecord(
            key, f"journal object has {len(lines)} entries, its header states {header.batches}"
        )
    manifests = tuple(decode_record(key, line, AcceptedManifest) for line in lines)
    return Journal(header=header, manifests=manifests)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessProgress:
    """How far the journal of one gateway process was processed.

    Attributes:
        complete_through_ns: The time of its newest processed journal object: every batch named up
            to there is enqueued or held. Before the first object, the start of the process.
        newest_ns: The Last-Modified of its newest listed object, the registration included.
    """

    collector_id: str
    process: str
    acceptance: AcceptanceMode
    complete_through_ns: UnixNs
    newest_ns: UnixNs
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The time through which all is enqueued or held, and which journal bounds it, if any."""

    complete_through_ns: UnixNs
    held_by: ProcessProgress | None = None


def decide_frontier(
    listed_ns: UnixNs,
    processes: Iterable[ProcessProgress],
    pass_began_ns: UnixNs | None,
    spool_left_ns: UnixNs | None = None,
) -> Frontier:
    """Decide through which time every acknowledged batch is enqueued or held.

    The journals of each process must be listed after `listed_ns` was read. Otherwise a process that
    resumed in between appears to be older than it is. `listed_ns` is the store's clock before the
    listing of the registrations: a process that is registered later acknowledges later.
    `pass_began_ns` is the same before the last complete full pass. `spool_left_ns` is the time in
    the newest switch of the authority away from `local_spool` (`switched_at_unix_ns`). Both are
    None if there is none.
    """
    known = list(processes)
    ended = ended_processes(known, pass_began_ns, spool_left_ns)
    bounds = [one for one in known if one.process not in ended]
    slowest = min(bounds, key=lambda one: one.complete_through_ns, default=None)
    if slowest is None or slowest.complete_through_ns >= listed_ns:
        return Frontier(complete_through_ns=listed_ns)
    return Frontier(complete_through_ns=slowest.complete_through_ns, held_by=slowest)


def ended_processes(
    processes: Iterable[ProcessProgress],
    pass_began_ns: UnixNs | None,
    spool_left_ns: UnixNs | None = None,
) -> frozenset[str]:
    """Return the processes whose journals no longer bound the frontier; see `decide_frontier`."""
    known = list(processes)
    spools = [one.process for one in known if one.acceptance == "local_spool"]
    evidence = _Evidence(
        newest_spool=max(spools, default=""),
        pass_began_ns=pass_began_ns,
        spool_left_ns=spool_left_ns,
    )
    return frozenset(one.process for one in known if one.closed or _is_replaced(one, evidence))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """What may show the batches that a process acknowledged after its last object."""

    newest_spool: str
    pass_began_ns: UnixNs | None
    spool_left_ns: UnixNs | None


def _is_replaced(one: ProcessProgress, evidence: _Evidence) -> bool:
    """Return True if something else shows what a process acknowledged after its last object.

    A process that accepts in the store acknowledges nothing after `FENCE_S`, so a full pass that
    began later lists all of it.

    A spool may acknowledge without the store for days, so its age proves nothing. Its gateways
    continue one journal. Two facts end a journal that was not closed:

    - A later registration of the spool, and a full pass that began after it. Only one process of a
      spool runs, so the earlier one had ended. What it had transferred is in the listing of that
      pass. What it had not transferred bounds the times of the later journal.
    - A switch of the authority away from the spool, and a full pass that began after it. The
      command locks the spool, so no process of it runs. It checks that the authority has every
      batch, and only then reads the time of the switch. From then on the spool accepts nothing. So
      every batch that the spool ever acknowledged is in the listing of that pass. A process that
      registered after the switch belongs to a later switch back.
    """
    began_ns = evidence.pass_began_ns
    if began_ns is None:
        return False
    if one.acceptance == "local_spool":
        later, left_ns = evidence.newest_spool, evidence.spool_left_ns
        is_followed = one.process < later and f"{began_ns:020d}" >= later[:20]
        is_left = left_ns is not None and one.process < f"{left_ns:020d}" and began_ns >= left_ns
        return is_followed or is_left
    return began_ns >= one.newest_ns + int(JOURNAL_REPLACED_AFTER_S * NS_PER_S)


DISCOVERY: Final = ObjectKey(f"{RECONCILER}discovery.json")
HOLD_RECORDS: Final = f"{RECONCILER}held/"


class DiscoveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How far discovery is complete.

    Attributes:
        complete_through_unix_ns: Every batch that a gateway acknowledged before this time of the
            store's clock is enqueued in every queue, or has a hold record.
        listed: Number of keys under `accepted/` in the last complete full pass.
        held_by: The gateway and the process whose journal holds the time back, as text; None if
            none does, or if full passes decide the time.
        journals: The last journal object of each registered process through which every entry is
            enqueued or held. A process that is missing has no processed object.
        lanes: The lanes whose time is later than `complete_through_unix_ns`, three digits each.
        layout: The layout of these lanes.
        pass_began_unix_ns: When the last complete full pass began. Every batch whose manifest
            existed then is enqueued or held, acknowledged or not.
        journaled_since_unix_ns: Since when every gateway is known to write a journal. None while
            only full passes decide the time.
        writer: Identifies the write; with `revision` it makes the bytes of each write unique.
    """

    schema: Literal["sluice.reconciler_discovery.v3"] = "sluice.reconciler_discovery.v3"
    complete_through_unix_ns: int
    listed: int
    held_by: str | None = None
    journals: dict[str, int] = {}
    lanes: dict[str, int] = {}
    layout: int = 0
    pass_began_unix_ns: int | None = None
    pass_queues: tuple[str, ...] = ()
    journaled_since_unix_ns: int | None = None
    revision: int = 0
    writer: str = ""

    def lane_time(self, lane: int, layout: int) -> int:
        """Return the time of a lane: that of all lanes if this record is of another layout."""
        through_ns = self.complete_through_unix_ns
        return self.lanes.get(f"{lane:03d}", through_ns) if layout == self.layout else through_ns


class HoldReason(StrEnum):
    """Why a batch is held."""

    BLOB_MISSING = "blob_missing"
    BLOB_CORRUPT = "blob_corrupt"
    INVALID_MANIFEST = "invalid_manifest"
    FOREIGN_KEY = "foreign_key"
    MANIFEST_MISSING = "manifest_missing"
    """A journal names it, so it was acknowledged, and it has no manifest."""


class HoldRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One object that could not be enqueued; removed after its batch is enqueued.

    `key` is under `accepted/` or `quarantine/`. The time is when it was first found so, by the
    store's clock.
    """

    schema: Literal["sluice.hold_record.v1"] = "sluice.hold_record.v1"
    key: str
    reason: HoldReason
    detail: str
    seen_at_unix_ns: int


def hold_record_key(key: str) -> ObjectKey:
    """Return the key of the hold record of an object."""
    return ObjectKey(f"{HOLD_RECORDS}{hashlib.sha256(key.encode()).hexdigest()}.json")
