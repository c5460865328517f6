"""Object events through an SQS client and moto's server."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import aioboto3
import pytest
from support.policies_live import BUCKET, settings_file
from support.reconciler_seed import accept, enqueued
from support.store_versitygw import Server, make_bucket

from sluice_policies.configuration import ConfigurationPart, configuration
from sluice_policies.settings import read_settings
from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreError
from sluice_protocol.keys import accepted_key
from sluice_protocol.system_clock import SystemClock
from sluice_reconciler.events import EventReceiver
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store import StoreMode, open_store
from sluice_store.administration import open_administration
from sluice_store.local import open_local_store
from sluice_store.s3.events import open_event_queue
from sluice_store.s3.settings import parse_s3_url


@pytest.fixture(autouse=True)
def endpoint_of_the_queue(moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", moto.endpoint)


async def left_in(client: Any, url: str) -> tuple[int, int]:
    """Return how many messages are visible, and how many were received and not removed."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = await client.get_queue_attributes(QueueUrl=url, AttributeNames=names)
    visible, received = (int(found["Attributes"][name]) for name in names)
    return visible, received


def test_sqs_messages_of_every_shape_are_processed_once_and_removed(
    tmp_path: Path, moto: Server
) -> None:
    """S3 and EventBridge events, a repeated one, an invalid message; then the queue is empty."""

    async def run(endpoint: str) -> None:
        async with (
            aioboto3.Session().client(
                "sqs", endpoint_url=endpoint, region_name="us-east-1"
            ) as client,
            open_local_store(tmp_path) as store,
        ):
            url = (await client.create_queue(QueueName="events"))["QueueUrl"]
            keys = [accepted_key((await accept(store, seq)).identity) for seq in (0, 10)]
            record = {"eventName": "ObjectCreated:Put", "s3": {"object": {"key": keys[0]}}}
            bridge = {"detail-type": "Object Created", "detail": {"object": {"key": keys[1]}}}
            messages: list[Any] = [{"Records": [record]}, {"Records": [record]}, bridge, "no event"]
            for one in messages:
                await client.send_message(QueueUrl=url, MessageBody=json.dumps(one))
            assert await left_in(client, url) == (4, 0)
            reconciler = Reconciler(store, Authority(authority_id="A", lanes=1))
            async with open_event_queue(url, region="us-east-1") as source:
                receiver = EventReceiver(
                    source,
                    reconciler.pipeline.process_new_in_steps,
                    reconciler.metrics,
                    SystemClock(),
                    polls=1,
                )
                while sum(await left_in(client, url)):
                    await receiver.process(await source.receive(wait_s=1))
                    # Whatever was received in this round was removed in it.
                    assert (await left_in(client, url))[1] == 0
            assert len(await enqueued(store)) == 2
            await client.send_message(QueueUrl=url, MessageBody="released")
            async with open_event_queue(url, region="us-east-1") as source:
                for reception in (1, 2):
                    (again,) = await source.receive(wait_s=2)
                    assert (again.body, again.receives) == (b"released", reception)
                    await source.release([again], 0)
                (again,) = await source.receive(wait_s=2)
                await source.done([again])
            assert await left_in(client, url) == (0, 0)
            missing = f"{endpoint}/123456789012/none"
            async with open_event_queue(missing) as source:
                with pytest.raises(StoreError):
                    await source.receive(wait_s=0)

    asyncio.run(run(moto.endpoint))


@pytest.mark.long
def test_parallel_polls_empty_a_queue_of_many_messages(
    tmp_path: Path, moto: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service with 4 polls: 40 messages, each batch once."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")

    async def run(endpoint: str) -> None:
        async with (
            aioboto3.Session().client(
                "sqs", endpoint_url=endpoint, region_name="us-east-1"
            ) as client,
            open_local_store(tmp_path) as store,
        ):
            url = (await client.create_queue(QueueName="many"))["QueueUrl"]
            settings = ReconcilerSettings(
                event_queue_url=url,
                event_queue_polls=4,
                pass_interval_s=3600.0,
                tail_interval_s=0.0,
                scan_interval_s=3600.0,
            )
            reconciler = Reconciler(store, Authority(authority_id="A", lanes=1), settings=settings)
            task = asyncio.create_task(reconciler.run())
            for _ in range(400):
                if not reconciler.health.why_not_ready():
                    break
                await asyncio.sleep(0.05)
            for seq in range(0, 400, 10):
                key = accepted_key((await accept(store, seq)).identity)
                record = {"eventName": "ObjectCreated:Put", "s3": {"object": {"key": key}}}
                body = json.dumps({"Records": [record]})
                await client.send_message(QueueUrl=url, MessageBody=body)
            for _ in range(400):
                if not sum(await left_in(client, url)):
                    break
                await asyncio.sleep(0.1)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            found = [one.identity for one in await enqueued(store)]
            assert len(found) == len(set(found)) == 40

    asyncio.run(run(moto.endpoint))


async def test_a_bucket_announces_its_batches_in_a_queue(tmp_path: Path, moto: Server) -> None:
    """The notification that `sluice policies` renders sends accepted batches, and nothing else."""
    arn = "arn:aws:sqs:us-east-1:123456789012:accepted"
    text = f'[notifications]\nqueue_arn = "{arn}"\n'
    settings = read_settings(settings_file(tmp_path, "aws", tls=True, extra=text))
    rendered = configuration(settings)[ConfigurationPart.NOTIFICATION]
    store_url = moto.url(BUCKET, settings.bucket.prefix)

    await make_bucket(store_url)
    async with (
        aioboto3.Session().client(
            "sqs", endpoint_url=moto.endpoint, region_name="us-east-1"
        ) as client,
        open_administration(parse_s3_url(store_url)) as admin,
        open_store(store_url, StoreMode.CREATE) as store,
    ):
        url = (await client.create_queue(QueueName="accepted"))["QueueUrl"]
        await admin.write("notification", rendered)
        accepted = [(await accept(store, seq)).identity for seq in (0, 10)]
        assert await left_in(client, url) == (3, 0)  # the first one is the test event of S3
        reconciler = Reconciler(store, Authority(authority_id="A", lanes=1))
        async with open_event_queue(url, region="us-east-1") as source:
            receiver = EventReceiver(
                source,
                reconciler.pipeline.process_new_in_steps,
                reconciler.metrics,
                SystemClock(),
                polls=1,
            )
            while sum(await left_in(client, url)):
                await receiver.process(await source.receive(wait_s=1))
        assert {one.identity for one in await enqueued(store)} == {*accepted}
