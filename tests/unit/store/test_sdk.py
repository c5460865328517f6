"""The AWS SDK: opened when it is called, its models parsed once a process, its package named."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from botocore.loaders import JSONFileLoader

from sluice_protocol.distribution import install_command
from sluice_protocol.errors import BadUsage, StoreUnavailable
from sluice_protocol.units import ObjectKey
from sluice_store import ObjectStore, open_store
from sluice_store.s3.credentials import aws_endpoint, credential_source
from sluice_store.s3.events import open_event_queue
from sluice_store.s3.sdk import S3Session, _shared_models, open_sdk
from sluice_store.s3.settings import S3Settings, parse_s3_url

URL = "s3://bucket/?endpoint=http://127.0.0.1:1&region=us-east-1"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


async def opened() -> None:
    async with open_sdk(parse_s3_url(URL)):
        pass


def test_a_store_opens_the_sdk_for_its_first_call_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    openings: list[str] = []

    @asynccontextmanager
    async def counted(settings: S3Settings) -> AsyncIterator[S3Session]:
        openings.append(settings.bucket)
        async with open_sdk(settings) as session:
            yield session

    async def read(store: ObjectStore) -> None:
        with pytest.raises(StoreUnavailable):
            await anext(aiter(store.list_incarnations("raw/")))

    async def main() -> None:
        async with open_store(URL) as store:
            with pytest.raises(StoreUnavailable):
                await store.get(ObjectKey("raw/a"))
            assert openings == []
            await asyncio.gather(read(store), read(store))
            assert openings == ["bucket"]

    monkeypatch.setattr("sluice_store.s3.sdk.open_sdk", counted)
    asyncio.run(main())


async def endpoint_of_client(region: str) -> str:
    async with open_sdk(S3Settings(bucket="bucket", region=region)) as session:
        return str(session.client.meta.endpoint_url)


@pytest.mark.parametrize("variable", [None, "AWS_USE_DUALSTACK_ENDPOINT", "AWS_USE_FIPS_ENDPOINT"])
@pytest.mark.parametrize(
    "region", ["eu-central-1", "us-west-2", "cn-north-1", "us-gov-west-1", "eu-new-7", "other-1"]
)
def test_an_endpoint_of_aws_is_that_of_the_sdk(
    monkeypatch: pytest.MonkeyPatch, region: str, variable: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "true")
    assert aws_endpoint(None, region) == asyncio.run(endpoint_of_client(region))


def test_a_second_opening_parses_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
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
