from pathlib import Path

from msgspec.structs import replace
from support.query_lake import log_batch, metric_batch

from sluice_lake.blobs import BlobFault, RejectedBlob, decode_blob, fetch_frame
from sluice_protocol.frame import Frame
from sluice_protocol.keys import digest_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import ObjectKey
from sluice_store import StoreMode, open_store

BATCH = log_batch(["one", "two"])
KEY = ObjectKey(BATCH.manifest.raw_blob_key)


def rejected(manifest: AcceptedManifest, body: bytes | None) -> RejectedBlob:
    found = decode_blob(manifest, body)
    assert isinstance(found, RejectedBlob)
    assert f"key=`{KEY}`" in found.detail
    return found


def test_a_blob_that_matches_its_manifest_is_decoded() -> None:
    frame = decode_blob(BATCH.manifest, BATCH.frame)
    assert isinstance(frame, Frame)
    assert frame.identity == BATCH.manifest.identity


def test_each_fault_has_its_reason() -> None:
    """A blob is missing, has other bytes, is no frame, or belongs to another batch."""
    assert rejected(BATCH.manifest, None).fault is BlobFault.MISSING
    found = rejected(BATCH.manifest, BATCH.frame + b"x")
    assert found.fault is BlobFault.CORRUPT
    assert digest_of(BATCH.frame + b"x") in found.detail
    cut = BATCH.frame[:-1]
    shorter = replace(BATCH.manifest, frame_sha256=digest_of(cut))
    assert rejected(shorter, cut).fault is BlobFault.INVALID_FRAME
    for other in (
        log_batch(["one", "two"], start=2).frame,
        log_batch(["one", "two"], agent="host-2").frame,
        metric_batch([1.0, 2.0]).frame,
    ):
        manifest = replace(BATCH.manifest, frame_sha256=digest_of(other))
        assert rejected(manifest, other).fault is BlobFault.DISAGREES


async def test_a_frame_is_read_from_the_first_store_that_contains_its_blob(tmp_path: Path) -> None:
    urls = [f"file://{tmp_path}/{name}" for name in ("spool", "store")]
    async with (
        open_store(urls[0], StoreMode.CREATE) as spool,
        open_store(urls[1], StoreMode.CREATE) as store,
    ):
        found = await fetch_frame([spool, store], BATCH.manifest)
        assert isinstance(found, RejectedBlob)
        assert found.fault is BlobFault.MISSING
        await store.create(KEY, BATCH.frame)
        assert isinstance(await fetch_frame([spool, store], BATCH.manifest), Frame)
        await spool.create(KEY, b"damaged")
        found = await fetch_frame([spool, store], BATCH.manifest)
        assert isinstance(found, RejectedBlob)
        assert found.fault is BlobFault.CORRUPT


async def test_a_large_blob_is_decoded_as_a_small_one(tmp_path: Path) -> None:
    large = log_batch([f"{number:>8} {'x' * 1000}" for number in range(500)])
    async with open_store(f"file://{tmp_path}", StoreMode.CREATE) as store:
        await store.create(ObjectKey(large.manifest.raw_blob_key), large.frame)
        frame = await fetch_frame([store], large.manifest)
        assert isinstance(frame, Frame)
        assert frame.envelope.count == 500
