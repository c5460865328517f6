"""Without the AWS SDK, the error of each place that needs it contains the command to install it."""

import asyncio
import re
import sys

import pytest

from sluice_protocol.distribution import install_command
from sluice_protocol.errors import BadUsage
from sluice_store.s3.credentials import credential_source
from sluice_store.s3.events import open_event_queue

MISSING = re.escape(install_command("s3"))


def test_an_event_queue_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with open_event_queue("https://sqs.eu-west-1.amazonaws.com/1/queue"):
            pass

    monkeypatch.setitem(sys.modules, "aioboto3", None)
    with pytest.raises(BadUsage, match=f"{MISSING}.*/1/queue"):
        asyncio.run(main())


def test_credentials_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(BadUsage, match=MISSING):
        asyncio.run(credential_source("no-such-profile").get_frozen_credentials())
