"""`sluice explain`: the complete path of one batch."""

import asyncio

from rich.console import Console

from sluice_cli.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.output import emit, format_size
from sluice_reconciler.explain import BatchPath, parse_subject
from sluice_reconciler.explain import explain as read_paths
from sluice_store.authority import open_deployment


def explain(subject: str, /, *, store: StoreUrl = STORE_DEFAULT, json: Json = False) -> int:
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
    return 0 if paths and all(path.blob == "ok" for path in paths) else 1


async def _read(url: str, subject: str) -> list[BatchPath]:
    wanted = parse_subject(subject)
    async with open_deployment(url) as store:
        return await read_paths(store, wanted)


def _draw(console: Console, subject: str, paths: list[BatchPath]) -> None:
    if not paths:
        console.print(
            f"no batch contains {subject}"
            if "/" in subject
            else f"nothing names {subject}: an orphan blob, or a blob that is not indexed yet"
        )
    for path in paths:
        _draw_one(console, path)


def _draw_one(console: Console, path: BatchPath) -> None:
    who, manifest = path.identity, path.manifest
    console.print(f"{who.agent_id}/{who.boot_id}/{who.seq_start}-{who.seq_end}")
    if manifest is not None:
        console.print(
            f"  accepted  {path.accepted_for_s:.1f} s ago by {manifest.collector_id},"
            f" {manifest.record_count} {manifest.kind}, {format_size(manifest.frame_bytes)}"
        )
        console.print(f"  blob      {manifest.raw_blob_key}: {path.blob}")
    else:
        console.print(f"  accepted  no, {path.blob}")
    for key, is_present in path.indexes.items():
        console.print(f"  index     {key}: {'present' if is_present else 'missing'}")
    for place in path.queues:
        where = f"{place.queue}.{place.lane:03d}"
        if place.sequence is not None:
            console.print(f"  queue     {where}: pending as {place.sequence} in {place.work_list}")
        elif place.enqueued:
            console.print(f"  queue     {where}: acknowledged through {place.acked_through}")
        else:
            console.print(f"  queue     {where}: not enqueued yet")
    if path.mark is not None:
        console.print(f"  held back: see {path.mark}")
    for key in path.quarantined:
        console.print(f"  conflict  {key}")
