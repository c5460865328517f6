"""The webhook of SNS in the service: SNS has no token and sends text/plain to a public host."""

import asyncio
import io
import json
from pathlib import Path

import aioboto3
import aiohttp
import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.sns.models import sns_backends
from support.reconciler_seed import accept, enqueued
from support.sns_signer import TOPIC, SnsHost, certificate, message, s3_event
from support.store_versitygw import Server, make_bucket

from sluice_protocol.authority import Authority
from sluice_protocol.keys import accepted_key
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.timestamps import format_rfc3339
from sluice_reconciler.app import make_operator_app
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_reconciler.sns_webhook import FetchedPage
from sluice_store import StoreMode, open_store
from sluice_store.administration import open_administration
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore
from sluice_store.s3.settings import parse_s3_url
from sluice_web.connection_guard import listening

ALL_ROUTES_BUT_EVENTS = {
    "pass_interval_s": 3600.0,
    "tail_interval_s": 0.0,
    "scan_interval_s": 3600.0,
}
AS_SNS = {"Content-Type": "text/plain; charset=UTF-8", "Host": "hooks.example"}


async def wait_for(store: ObjectStore, count: int) -> int:
    for _ in range(200):
        if len(await enqueued(store)) >= count:
            break
        await asyncio.sleep(0.05)
    return len(await enqueued(store))


def make(store: ObjectStore, settings: ReconcilerSettings) -> Reconciler:
    return Reconciler(store, Authority(authority_id="A", lanes=1), settings=settings)


async def wait_until_ready(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(400):
        async with session.get(f"{url}/readyz") as response:
            if response.status == 200:
                return
        await asyncio.sleep(0.05)
    raise AssertionError("the reconciler is not ready")


async def test_a_confirmed_subscription_enqueues_what_s3_announces(tmp_path: Path) -> None:

    now = format_rfc3339(SystemClock().now_ns())
    host = SnsHost(pem=certificate(days=36_000))
    settings = ReconcilerSettings(api_token="t", sns_topics=TOPIC, **ALL_ROUTES_BUT_EVENTS)
    async with open_local_store(tmp_path) as store, aiohttp.ClientSession() as session:
        app = make_operator_app(make(store, settings), host.fetch)
        async with listening(app, "127.0.0.1:0") as (url, *_):
            hook = f"{url}/hooks/sns"
            await wait_until_ready(session, url)

            async def send(body: object, **fields: str) -> int:
                data = io.BytesIO(json.dumps(body).encode())
                async with session.post(hook, data=data, headers=AS_SNS | fields) as response:
                    return response.status

            assert await send(message("SubscriptionConfirmation", Timestamp=now)) == 200
            assert "Action=ConfirmSubscription" in host.fetched[-1]
            key = accepted_key((await accept(store, 0)).identity)
            events = message(MessageId="2", Timestamp=now, Message=s3_event(key))
            assert await send({**events, "Message": s3_event(key, key)}) == 401
            assert await enqueued(store) == []
            assert await send(events, Origin="https://evil.example") == 403
            assert await send(events) == 200
            assert await wait_for(store, 1) == 1
            assert await send({"Records": []}) == 400
            assert await send({"Message": "x" * (2 << 20)}) == 413


async def test_without_topics_there_is_no_webhook(tmp_path: Path) -> None:

    host = SnsHost()
    async with open_local_store(tmp_path) as store, aiohttp.ClientSession() as session:
        app = make_operator_app(make(store, ReconcilerSettings()), host.fetch)
        async with (
            listening(app, "127.0.0.1:0") as (url, *_),
            session.post(f"{url}/hooks/sns", json=message()) as response,
        ):
            assert response.status == 404
    assert host.fetched == []


class MotoHost(SnsHost):
    """The certificates of moto, which its server has at no address."""

    async def fetch(self, url: str) -> FetchedPage:
        """Return the certificate that a message names."""
        certificates = sns_backends[DEFAULT_ACCOUNT_ID]["us-east-1"]._message_public_keys
        return FetchedPage(status=200, body=certificates[url.rpartition("/")[2]])


@pytest.mark.long
async def test_a_bucket_announces_its_batches_through_a_topic(moto: Server) -> None:
    """moto sends the event of the bucket to its topic, and signs the message to the webhook."""
    store_url = moto.url("topics", "pre")

    await make_bucket(store_url)
    where = {"endpoint_url": moto.endpoint, "region_name": "us-east-1"}
    async with (
        aioboto3.Session().client("sns", **where) as sns,
        open_administration(parse_s3_url(store_url)) as admin,
        open_store(store_url, StoreMode.CREATE) as store,
        aiohttp.ClientSession() as session,
    ):
        topic = (await sns.create_topic(Name="batches"))["TopicArn"]
        settings = ReconcilerSettings(api_token="t", sns_topics=topic, **ALL_ROUTES_BUT_EVENTS)
        app = make_operator_app(make(store, settings), MotoHost().fetch)
        async with listening(app, "127.0.0.1:0") as (url, *_):
            await wait_until_ready(session, url)
            await sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=f"{url}/hooks/sns")
            announced = {"TopicArn": topic, "Events": ["s3:ObjectCreated:*"]}
            await admin.write("notification", {"TopicConfigurations": [announced]})
            await accept(store, 0)
            assert await wait_for(store, 1) == 1
