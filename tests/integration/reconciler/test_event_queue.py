"""Object events through an SQS client and moto's server."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aioboto3
import pytest
from support.reconciler_seed import accept, enqueued
from support.store_versitygw import CREDENTIALS, free_port, running

from sluice_protocol.authority import Authority
from sluice_protocol.errors import StoreError
from sluice_protocol.keys import accepted_key
from sluice_reconciler.events import process_events
from sluice_reconciler.service import Reconciler
from sluice_store.local import open_local_store
from sluice_store.s3.events import open_event_queue


async def left_in(client: Any, url: str) -> tuple[int, int]:
    """Return how many messages are visible, and how many were received and not removed."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = await client.get_queue_attributes(QueueUrl=url, AttributeNames=names)
    visible, received = (int(found["Attributes"][name]) for name in names)
    return visible, received


def test_sqs_messages_of_every_shape_are_processed_once_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 and EventBridge events, a repeated one, an invalid message; then the queue is empty."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    port = free_port()

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
            async with open_event_queue(url, endpoint=endpoint, region="us-east-1") as source:
                while sum(await left_in(client, url)):
                    await process_events(source, reconciler.pipeline, reconciler.metrics)
                    # Whatever was received in this round was removed in it.
                    assert (await left_in(client, url))[1] == 0
            assert len(await enqueued(store)) == 2
            missing = f"{endpoint}/123456789012/none"
            async with open_event_queue(missing, endpoint=endpoint) as source:
                with pytest.raises(StoreError):
                    await source.receive(wait_s=0)

    with running([sys.executable, "-m", "moto.server", "-p", str(port)], port) as server:
        asyncio.run(run(server.endpoint))
