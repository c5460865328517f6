"""The SDK's service models are parsed once a process, not at each opening of a store."""

import asyncio

import pytest
from botocore.loaders import JSONFileLoader

from sluice_store import open_store
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
