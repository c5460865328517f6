"""`sluice explain`: the complete path of one batch."""

import asyncio
from typing import TYPE_CHECKING

from sluice_cli.shell.options import STORE_DEFAULT, FoundStoreUrl, Json
from sluice_cli.shell.output import emit, format_size, format_time
from sluice_maintain.lake_state import make_lake_reader
from sluice_protocol.batch_in_lake import BatchInLake
from sluice_protocol.batch_seal import SealBounds
from sluice_protocol.identity import format_identity
from sluice_reconciler.explain import (
    EXPIRED_BLOB,
    BatchPath,
    QueuePosition,
    StoredObject,
    parse_subject,
    read_batch_paths,
)
from sluice_store import StoreMode, open_deployment

if TYPE_CHECKING:
    from rich.console import Console


def explain(subject: str, /, *, store: FoundStoreUrl = STORE_DEFAULT, json: Json = False) -> int:
    """Show how far a batch has come, from the store alone.

    Args:
        subject: `agent/boot/start-end`, a record as `agent/boot/seq`, the key of a manifest, or the
            sha256 of a blob.
        store: The acceptance authority.
        json: Print JSON for programs.

    Returns:
        0, or 1 if the batch is unknown or a part of its path is damaged.
    """
    paths = asyncio.run(_read(store, subject))
    emit(paths, as_json=json, human=lambda console: _draw(console, subject, paths))
    return 0 if paths and all(path.blob in ("ok", EXPIRED_BLOB) for path in paths) else 1


async def _read(url: str, subject: str) -> list[BatchPath]:
    wanted = parse_subject(subject)
    async with open_deployment(url, StoreMode.READ) as store:
        return await read_batch_paths(store, wanted, make_lake_reader(store, url))


def _draw(console: "Console", subject: str, paths: list[BatchPath]) -> None:
    if not paths:
        console.print(
            f"no batch contains {subject}"
            if "/" in subject
            else f"nothing names {subject}: an orphan blob, or a blob that is not indexed yet"
        )
    for path in paths:
        _draw_one(console, path)


def _draw_one(console: "Console", path: BatchPath) -> None:
    who, manifest = path.identity, path.manifest
    console.print(format_identity(who))
    if path.sealed is not None:
        _draw_seal(console, path.sealed)
    if manifest is not None:
        console.print(
            f"  accepted  {path.accepted_for_s:.1f} s ago by {manifest.collector_id},"
            f" {manifest.record_count} {manifest.kind}, {format_size(manifest.frame_bytes)}"
        )
        console.print(f"  blob      {manifest.raw_blob_key}: {path.blob}")
    else:
        console.print(f"  accepted  no, {path.blob}")
    for one in path.objects:
        _draw_object(console, one)
    for place in path.queues:
        _draw_queue(console, place)
    if path.lake is not None:
        _draw_lake(console, path.lake)
    if path.mark is not None:
        console.print(f"  held back: see {path.mark}")
    for key in path.quarantined:
        console.print(f"  conflict  {key}")


def _draw_seal(console: "Console", seal: SealBounds) -> None:
    console.print(f"  sealed    {seal.meaning}")
    if seal.after_unix_ns is not None:
        after = format_time(seal.after_unix_ns)
        console.print(f"            after {after}, when its boot began, by the sealer's clock")
    if seal.before_unix_ns is not None:
        before = format_time(seal.before_unix_ns)
        console.print(f"            before {before}, by the clock of gateway {seal.gateway}")
    accepted = format_time(seal.accepted_before_unix_ns)
    console.print(f"            before {accepted}, when it was accepted, by the store's clock")


def _draw_object(console: "Console", one: StoredObject) -> None:
    role = one.role.value.replace("_", " ")
    if not one.present:
        console.print(f"  {role:12} {one.key}: missing")
        return
    at = format_time(one.last_modified_unix_ns or 0)
    where = f" in {one.packed_in}" if one.packed_in else ""
    console.print(
        f"  {role:12} {one.key}{where}\n"
        f"               {format_size(one.size_bytes or 0)}, {at}, sha256 {one.sha256}\n"
        f"               {one.proof}"
    )


def _draw_queue(console: "Console", place: QueuePosition) -> None:
    where = f"{place.queue}.{place.lane:03d}"
    if place.sequence is not None:
        console.print(f"  queue     {where}: pending as {place.sequence} in {place.work_list}")
    elif place.enqueued:
        console.print(f"  queue     {where}: acknowledged through {place.acked_through}")
    else:
        console.print(f"  queue     {where}: not enqueued yet")


def _draw_lake(console: "Console", lake: BatchInLake) -> None:
    state = lake.state.value.replace("_", " ")
    problem = f": {lake.problem}" if lake.problem else ""
    row = f", entry {lake.row.sequence} in {lake.row.key}" if lake.row else ""
    console.print(f"  lake      {state}{problem}{row}")
    console.print(f"  rollups   {lake.rollup.state.value.replace('_', ' ')}: {lake.rollup.reason}")
    for one in lake.rollup.windows:
        first, last = format_time(one.first_start_unix_ns), format_time(one.last_start_unix_ns)
        console.print(f"            {one.count} windows of {one.window}, {first} to {last}")
    if lake.rollup.source is not None:
        console.print(f"            source range {lake.rollup.source.key}")
