"""The AWS SDK: its models are parsed once a process, and without it the error names the package."""

import asyncio
import re
import sys

import pytest
from botocore.loaders import JSONFileLoader

from sluice_protocol.distribution import install_command
from sluice_protocol.errors import BadUsage
from sluice_store import open_store
from sluice_store.s3.credentials import credential_source
from sluice_store.s3.events import open_event_queue
from sluice_store.s3.sdk import _shared_models

URL = "s3://bucket/?endpoint=http://127.0.0.1:1&region=us-east-1"


async def opened() -> None:
    async with open_store(URL):
        pass


def test_a_second_opening_parses_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    asyncio.run(opened())
    models = _shared_models(None)
    folders, parsed = list(models.search_paths), list[str]()
    parse = JSONFileLoader.load_file

    def counted(self: JSONFileLoader, path: str) -> object:
        parsed.append(path)
        return parse(self, path)

    monkeypatch.setattr(JSONFileLoader, "load_file", counted)
    asyncio.run(opened())
    assert parsed == []
    assert models.search_paths == folders, "each session would add a folder"


def test_models_of_another_folder_have_another_loader() -> None:
    assert _shared_models("/models") is not _shared_models(None)
    assert "/models" in _shared_models("/models").search_paths


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
