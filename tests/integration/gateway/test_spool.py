"""`local_spool`: batches are accepted in the spool and transferred to the authority later."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.builders import later_release
from support.constants import settings_with
from support.gateway import (
    Client,
    CountingStore,
    HttpResult,
    TestKey,
    bodies_under,
    frame_of,
    identity,
    send_list,
    start_gateway,
    write_principals,
)
from support.local_deployment import run_sluice

from sluice_gateway.process.app import Gateway, build_gateway
from sluice_gateway.process.worker import serving
from sluice_gateway.settings import GatewaySettings
from sluice_gateway.spool import transfer as spool_transfer
from sluice_gateway.spool.claim import claim_authority, mirror_authority
from sluice_gateway.spool.transfer import SpoolTransfer
from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, StoreUnavailable
from sluice_protocol.keys import (
    ACCEPTED,
    GATEWAY_JOURNALS,
    QUARANTINE,
    RAW_BLOBS,
    accepted_key,
    blob_key,
    digest_of,
)
from sluice_protocol.manifests import encode_record, transfer_marker_key
from sluice_protocol.outcomes import (
    CreateOutcome,
    Found,
    NotFound,
    ObjectInfo,
    Unknown,
    UnknownReason,
)
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import Digest, ObjectKey
from sluice_store import StoreMode, create_authority, open_store
from sluice_store.doctor import DoctorResult, read_doctor
from sluice_web.listening import bind_shared

HOST = TestKey("host-1", ("host-1",))
OPS = TestKey("ops", (), roles=("operator",))
WRITER = "spool-gw"
AGREED = Authority(
    authority_id="01J00000000000000000000000", acceptance="local_spool", spool_writer=WRITER
)


class Remote(CountingStore):
    """An authority that can be unreachable, refuse some keys, or lose its responses."""

    away = False
    refused = ""
    """The prefix of keys that cannot be written."""
    lossy = 0

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        if self.away or (self.refused and key.startswith(self.refused)):
            raise StoreUnavailable("create", key, "unreachable")
        outcome = await super().create(key, body, sha256=sha256)
        if self.lossy > 0:
            self.lossy -= 1
            return Unknown(reason=UnknownReason.RESET)
        return outcome


@dataclass
class Spooling:
    """A spooling gateway over two directories."""

    gateway: Gateway
    transfer: SpoolTransfer
    local: CountingStore
    remote: Remote
    client: Client


@asynccontextmanager
async def spooling(tmp_path: Path) -> AsyncIterator[Spooling]:
    principals = write_principals(tmp_path / "principals.toml", HOST, OPS)
    settings = settings_with(
        GatewaySettings,
        principals=principals,
        spool=f"file://{tmp_path}/spool",
        upload_time_s_max=5.0,
    )
    async with (
        open_store(f"file://{tmp_path}/spool", StoreMode.CREATE) as spool,
        open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as authority,
    ):
        await create_authority(authority, AGREED)
        local, remote = CountingStore(spool), Remote(authority)
        agreed = (await mirror_authority(local, remote, SystemClock())).current
        gateway = build_gateway(local, agreed, settings, WRITER, transfers_to=remote)
        await gateway.uploads.journal.open()
        remote.calls.clear()
        transfer = gateway.transfer
        assert transfer is not None
        sock = bind_shared("127.0.0.1", 0)
        port = sock.getsockname()[1]
        async with serving(gateway, sock), aiohttp.ClientSession() as session:
            client = Client(session, port, HOST)
            yield Spooling(gateway, transfer, local, remote, client)


async def test_a_spooled_batch_is_transferred_with_its_manifest(tmp_path: Path) -> None:
    """200 from the spool; then the authority contains the blob and the same manifest bytes."""
    async with spooling(tmp_path) as spooled:
        frame = frame_of()
        assert (await spooled.client.upload(frame)).body["duplicate"] is False
        assert [key for verb, key in spooled.remote.calls if verb == "create"] == []
        await spooled.transfer.transfer_once()
        key = accepted_key(identity())
        here = await spooled.local.inner.get(key)
        there = await spooled.remote.inner.get(key)
        assert isinstance(here, Found)
        assert isinstance(there, Found)
        assert here.body == there.body
        blob = await spooled.remote.inner.get(blob_key(digest_of(frame)))
        assert isinstance(blob, Found)
        assert blob.body == frame
        assert isinstance(await spooled.local.inner.head(blob_key(digest_of(frame))), NotFound)
        assert spooled.transfer.pending == 0
        # The spool still decides duplicates and conflicts, without its blob.
        spooled.gateway.uploads.cache.forget_all()
        assert (await spooled.client.upload(frame, Sluice_Retry="1")).body["duplicate"] is True
        assert (await spooled.client.upload(frame_of(text="other"))).status == 409


async def test_the_spool_accepts_while_the_authority_is_unreachable(tmp_path: Path) -> None:
    """Nothing is refused or transferred; afterwards every record is transferred once."""
    async with spooling(tmp_path) as spooled:
        spooled.remote.away = True
        for seq in range(5):
            assert (await spooled.client.upload(frame_of(identity(seq=seq)))).status == 200
        await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 5
        assert (await spooled.client.upload(frame_of(text="x"))).status == 409
        spooled.remote.away = False
        await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 0
    url = f"file://{tmp_path}/store"
    assert len(await bodies_under(url, ACCEPTED)) == 5
    assert len(await bodies_under(url, RAW_BLOBS)) == 6
    assert len(await bodies_under(url, QUARANTINE)) == 1


async def test_each_frame_of_a_list_is_accepted_in_the_spool_and_transferred(
    tmp_path: Path,
) -> None:
    """Each result is that of a single upload; a conflict and lost responses stop no other frame."""
    async with spooling(tmp_path) as spooled:
        spooled.remote.away = True
        known, other = frame_of(identity(seq=1)), frame_of(identity(seq=1), "other")
        assert (await spooled.client.upload(known)).status == 200
        new = [frame_of(identity(seq=seq)) for seq in range(2, 10)]
        results = await send_list(spooled.client, known, other, *new, new[0])
        assert [one["status"] for one in results] == [200, 409, *[200] * 9]
        duplicates = [one["accepted"]["duplicate"] for one in results if "accepted" in one]
        assert duplicates == [True, *[False] * 8, True]
        assert [key for verb, key in spooled.remote.calls if verb == "create"] == []
        spooled.remote.away, spooled.remote.lossy = False, 3
        await spooled.transfer.transfer_once()
        await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 0
        for seq in range(1, 10):
            key = accepted_key(identity(seq=seq))
            here, there = (await spooled.local.inner.get(key), await spooled.remote.inner.get(key))
            assert isinstance(here, Found)
            assert isinstance(there, Found)
            assert here.body == there.body
        spooled.gateway.uploads.cache.forget_all()
        again = await send_list(spooled.client, *new)
        assert {one["accepted"]["duplicate"] for one in again} == {True}
    url = f"file://{tmp_path}/store"
    assert len(await bodies_under(url, ACCEPTED)) == 9
    assert len(await bodies_under(url, RAW_BLOBS)) == 10
    assert len(await bodies_under(url, QUARANTINE)) == 1


async def test_lost_responses_do_not_repeat_a_transfer(tmp_path: Path) -> None:
    """Own writes with a lost response are recognized when they are read."""
    async with spooling(tmp_path) as spooled:
        await spooled.transfer.transfer_once()
        assert (await spooled.client.upload(frame_of())).status == 200
        spooled.remote.lossy = 2
        await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 0
        metric = spooled.gateway.metrics.spool_transferred.labels("accepted")
        assert metric._value.get() == 1
    assert len(await bodies_under(f"file://{tmp_path}/store", QUARANTINE)) == 0


async def test_a_batch_is_marked_as_transferred_only_after_the_journal_names_it(
    tmp_path: Path,
) -> None:
    """Otherwise no journal would name it, and an answer without it might be called complete."""
    async with spooling(tmp_path) as spooled:
        await spooled.transfer.transfer_once()
        marker = transfer_marker_key(accepted_key(identity()))
        assert (await spooled.client.upload(frame_of())).status == 200
        spooled.remote.refused = GATEWAY_JOURNALS
        await spooled.transfer.transfer_once()
        assert isinstance(await spooled.remote.inner.get(accepted_key(identity())), Found)
        assert isinstance(await spooled.local.inner.head(marker), NotFound)
        assert spooled.transfer.pending == 1
        spooled.remote.refused = ""
        await spooled.transfer.transfer_once()
        assert not isinstance(await spooled.local.inner.head(marker), NotFound)
        assert spooled.transfer.pending == 0


async def test_a_batch_whose_blob_neither_place_has_stays_pending(tmp_path: Path) -> None:
    """The manifest in the authority is no proof of the blob; a restored blob is enough."""
    async with spooling(tmp_path) as spooled:
        await spooled.transfer.transfer_once()
        frame, key = frame_of(), accepted_key(identity())
        assert (await spooled.client.upload(frame)).status == 200
        manifest = await spooled.local.inner.get(key)
        assert isinstance(manifest, Found)
        await spooled.remote.inner.create(key, manifest.body)
        blob = await spooled.local.inner.head(blob_key(digest_of(frame)))
        assert isinstance(blob, ObjectInfo)
        await spooled.local.inner.delete(blob.key, blob.incarnation)
        await spooled.transfer.transfer_once()
        assert isinstance(await spooled.local.inner.head(transfer_marker_key(key)), NotFound)
        assert spooled.transfer.pending == 1
        await spooled.local.inner.create(blob.key, frame)
        await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 0
        assert isinstance(await spooled.remote.inner.head(blob.key), ObjectInfo)


async def test_a_batch_that_is_sent_again_during_its_transfer_leaves_no_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload writes the blob again after the transfer has deleted it: another pass drops it."""
    async with spooling(tmp_path) as spooled:
        await spooled.transfer.transfer_once()
        frame, mark = frame_of(), spool_transfer.mark_transferred
        blob = blob_key(digest_of(frame))

        async def late(*arguments: Any) -> None:
            await mark(*arguments)
            if not repeated:
                repeated.append(await spooled.client.upload(frame, Sluice_Retry="1"))

        repeated: list[HttpResult] = []
        monkeypatch.setattr(spool_transfer, "mark_transferred", late)
        assert (await spooled.client.upload(frame)).status == 200
        spooled.gateway.uploads.cache.forget_all()
        await spooled.transfer.transfer_once()
        assert [one.status for one in repeated] == [200]
        assert isinstance(await spooled.local.inner.head(blob), ObjectInfo)
        assert spooled.transfer.pending == 1
        await spooled.transfer.transfer_once()
        assert isinstance(await spooled.local.inner.head(blob), NotFound)
        assert spooled.transfer.pending == 0


async def test_a_transfer_resumes_after_a_crash_at_every_step(tmp_path: Path) -> None:
    """A new process finds the pending records: without a marker, or with a blob that was not
    deleted.
    """
    async with spooling(tmp_path) as spooled:
        for seq in range(3):
            assert (await spooled.client.upload(frame_of(identity(seq=seq)))).status == 200
        await spooled.transfer.transfer_once()
        # Crash before the marker of batch 1 and before the deletion of blob 2.
        frame = frame_of(identity(seq=1))
        key = transfer_marker_key(accepted_key(identity(seq=1)))
        info = await spooled.local.inner.head(key)
        await spooled.local.inner.delete(key, info.incarnation)  # type: ignore[arg-type,union-attr]
        await spooled.local.inner.create(blob_key(digest_of(frame)), frame)
    async with spooling(tmp_path) as resumed:
        await resumed.transfer.transfer_once()
        assert resumed.transfer.pending == 0
        assert isinstance(await resumed.local.inner.head(key), object)
        assert not isinstance(await resumed.local.inner.head(key), NotFound)
    url = f"file://{tmp_path}"
    assert len(await bodies_under(f"{url}/store", ACCEPTED)) == 3
    assert len(await bodies_under(f"{url}/store", QUARANTINE)) == 0
    assert len(await bodies_under(f"{url}/spool", RAW_BLOBS)) == 0


async def test_a_conflict_during_a_transfer_overwrites_nothing(tmp_path: Path) -> None:
    """Other bytes own the identity there: a quarantine record and an alert, and both blobs are
    kept.
    """
    theirs = Path(tmp_path / "theirs")
    async with spooling(theirs) as other:
        assert (await other.client.upload(frame_of(text="theirs"))).status == 200
        await other.transfer.transfer_once()
    manifests = await bodies_under(f"file://{theirs}/store", ACCEPTED)
    async with spooling(tmp_path) as spooled:
        for key, body in manifests.items():
            await spooled.remote.inner.create(ObjectKey(key), body)
        assert (await spooled.client.upload(frame_of(text="ours"))).status == 200
        await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 0
    url = f"file://{tmp_path}/store"
    assert await bodies_under(url, ACCEPTED) == manifests
    records = await bodies_under(url, QUARANTINE)
    ours = digest_of(frame_of(text="ours"))
    assert [json.loads(body)["submitted_frame_sha256"] for body in records.values()] == [ours]
    assert blob_key(ours) in await bodies_under(url, RAW_BLOBS)


async def test_decisions_are_transferred_too(tmp_path: Path) -> None:
    """A decision that an operator made at the spool is copied to the authority."""
    async with spooling(tmp_path) as spooled:
        await spooled.client.upload(frame_of(text="a"))
        await spooled.client.upload(frame_of(text="b"))
        listed = await spooled.client.get_signed("/v1/conflicts")
        conflict_id = listed.body["conflicts"][0]["id"]
        ops = Client(spooled.client.session, spooled.client.port, OPS)
        path = f"/v1/conflicts/{conflict_id}/resolve"
        assert (await ops.post_signed(path, {"action": "accept_existing"})).status == 200
        await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 0
    assert len(await bodies_under(f"file://{tmp_path}/store", "decisions/v1/")) == 1


async def test_a_frame_of_a_later_release_delays_no_other_record(tmp_path: Path) -> None:
    """It is in the spool after a rollback, and is transferred after the upgrade."""
    async with spooling(tmp_path) as spooled:
        for seq in (1, 2):
            assert (await spooled.client.upload(frame_of(identity(seq=seq)))).status == 200
        frame, record = later_release(frame_of(identity(seq=3)))
        blob, key = blob_key(record.digest), accepted_key(record.identity)
        await spooled.local.inner.create(blob, frame)
        await spooled.local.inner.create(key, encode_record(record))
        for _ in range(2):
            await spooled.transfer.transfer_once()
        assert spooled.transfer.pending == 1
        assert isinstance(await spooled.local.inner.head(blob), ObjectInfo)
        assert len(await bodies_under(f"file://{tmp_path}/store", ACCEPTED)) == 2


async def test_second_spool_is_refused(tmp_path: Path) -> None:
    """The authority belongs to the first spool that claimed it; another spool transfers nothing."""
    async with (
        open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as remote,
        open_store(f"file://{tmp_path}/one", StoreMode.CREATE) as one,
        open_store(f"file://{tmp_path}/two", StoreMode.CREATE) as two,
    ):
        ids = SystemIds()
        await claim_authority(one, remote, ids, WRITER)
        await claim_authority(one, remote, ids, WRITER)
        with pytest.raises(BadUsage, match="another spool"):
            await claim_authority(two, remote, ids, WRITER)


async def examined(url: str) -> DoctorResult | None:
    """Return the result of the doctor, which a gateway writes before it serves a new spool."""
    async with open_store(url) as store:
        return await read_doctor(store)


def refused(tmp_path: Path, *flags: str) -> str:
    """Run a gateway that must not start; return its errors."""
    done = run_sluice(
        tmp_path,
        *("gateway", "--store", f"file://{tmp_path}/store", "--listen", "127.0.0.1:0"),
        *("--principals", str(tmp_path / "principals.toml"), *flags),
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_real_process_spools_and_transfers(tmp_path: Path) -> None:
    """After a kill and a restart the records are transferred; a second writer is refused."""

    async def init() -> None:
        async with open_store(f"file://{tmp_path}/store", StoreMode.CREATE) as store:
            await create_authority(store, AGREED)

    async def landed() -> None:
        async with asyncio.timeout(20):
            while len(await bodies_under(url, ACCEPTED)) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    asyncio.run(init())
    url = f"file://{tmp_path}/store"
    principals = write_principals(tmp_path / "principals.toml", HOST)
    spool = ("--spool", f"file://{tmp_path}/spool")
    writer = (*spool, "--collector-id", WRITER)
    slow = (*writer, "--object-landing-interval-ms", "60000")
    first = start_gateway(tmp_path, url, principals, *slow)
    try:
        sent = first.upload(HOST, *(frame_of(identity(seq=seq)) for seq in range(10)))
        assert {one.status for one in sent} == {200}
        assert "another gateway has locked this spool" in refused(tmp_path, *writer)
        other = ("--spool", f"file://{tmp_path}/other", "--collector-id", "someone-else")
        assert "another spool writer" in refused(tmp_path, *other)
        assert asyncio.run(examined(f"file://{tmp_path}/other")) is None
        assert "acceptance mode differs" in refused(
            tmp_path, "--collector-id", WRITER, "--skip-probe"
        )
    finally:
        first.kill()
    assert len(asyncio.run(bodies_under(url, ACCEPTED))) < 10
    fast = (*writer, "--object-landing-interval-ms", "50")
    second = start_gateway(tmp_path, url, principals, *fast)
    try:
        asyncio.run(landed())
        assert second.stop() == 0
    finally:
        second.kill()
