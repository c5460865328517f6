"""Every source of credentials and settings works for the store and for the tables of the lake."""

import asyncio
import datetime as dt
import json
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from support.memory_bucket.server import serve_memory
from support.policies_server import authority_and_certificate
from support.store_versitygw import CREDENTIALS

from sluice_lake.delta import find_table
from sluice_lake.tables import LOGS
from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_spark.session import SessionSettings, session_conf
from sluice_store.url import open_store

KEY = ObjectKey("some/key")
FILE = "[{}]\naws_access_key_id = RIGHT\naws_secret_access_key = secret\n"
STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>RIGHT</AccessKeyId>
<SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>{}</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


class World:
    """The files and variables of a machine."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        for name in (*CREDENTIALS, "AWS_PROFILE", "AWS_CA_BUNDLE", *REGIONS):
            patch.delenv(name, raising=False)
        self.set(AWS_SHARED_CREDENTIALS_FILE=str(folder / "credentials"))
        self.set(AWS_CONFIG_FILE=str(folder / "config"))
        self.set(AWS_EC2_METADATA_DISABLED="true")

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        return path


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def environment(world: World, _: str) -> str:
    world.set(AWS_ACCESS_KEY_ID="RIGHT", AWS_SECRET_ACCESS_KEY="secret")
    return ""


def shared_file(world: World, _: str) -> str:
    world.write("credentials", FILE.format("default"))
    return ""


def named_profile(world: World, _: str) -> str:
    world.write("credentials", FILE.format("ops"))
    world.set(AWS_PROFILE="ops")
    return ""


def profile_of_the_url(world: World, _: str) -> str:
    world.write("credentials", FILE.format("ops"))
    world.set(AWS_ACCESS_KEY_ID="WRONG", AWS_SECRET_ACCESS_KEY="wrong")
    return "&profile=ops"


def program(world: World, _: str) -> str:
    keys = {"Version": 1, "AccessKeyId": "RIGHT", "SecretAccessKey": "secret"}
    script = world.write("process.py", f"print({json.dumps(keys)!r})")
    world.write("config", f"[default]\ncredential_process = {sys.executable} {script}\n")
    return ""


def container(world: World, metadata: str) -> str:
    world.set(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{metadata}/container")
    return ""


def web_identity(world: World, metadata: str) -> str:
    world.set(AWS_WEB_IDENTITY_TOKEN_FILE=str(world.write("token", "a.web.token")))
    world.set(AWS_ROLE_ARN="arn:aws:iam::123456789012:role/sluice", AWS_REGION="us-east-1")
    world.set(AWS_DEFAULT_REGION="us-east-1", AWS_ENDPOINT_URL_STS=metadata)
    return ""


SOURCES: tuple[Callable[[World, str], str], ...] = (
    environment,
    shared_file,
    named_profile,
    profile_of_the_url,
    program,
    container,
    web_identity,
)


async def _metadata(request: web.Request) -> web.Response:
    end = (dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    if request.path != "/container":
        return web.Response(text=STS.format(end), content_type="text/xml")
    keys = {"AccessKeyId": "RIGHT", "SecretAccessKey": "secret", "Token": "token"}
    return web.json_response(keys | {"Expiration": end})


@asynccontextmanager
async def metadata_service() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _metadata)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def use_both_halves(url: str) -> None:
    """Write and read an object, list versions, and look for a table with delta-rs and pyarrow."""
    async with open_store(url) as store:
        await store.create(KEY, b"x")
        assert isinstance(await store.get(KEY), Found)
        assert await anext(store.list_incarnations(""))
    assert await asyncio.to_thread(find_table, url, LOGS) is None


@pytest.mark.daily(4)
@pytest.mark.parametrize("source", SOURCES, ids=lambda one: one.__name__)
async def test_credentials_of_every_source_serve_both_halves(
    source: Callable[[World, str], str], world: World
) -> None:
    async with serve_memory({"RIGHT": "secret"}) as server, metadata_service() as metadata:
        server.make_bucket("bucket")
        query = source(world, metadata)
        await use_both_halves(f"s3://bucket/pre?endpoint={server.endpoint}&region=us-east-1{query}")


@pytest.mark.parametrize("place", ["url", "environment", "config", "profile"])
async def test_endpoint_region_and_authorities_serve_both_halves(place: str, world: World) -> None:
    """Endpoint, region and certificate authorities are found in the same places by both halves."""
    authorities, server_pem = authority_and_certificate(world.folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_pem)
    environment(world, "")

    async with serve_memory({"RIGHT": "secret"}, tls=context) as server:
        server.make_bucket("bucket")
        found = {"endpoint_url": server.endpoint, "region": "eu-1", "ca_bundle": authorities}
        lines = "".join(f"{name} = {value}\n" for name, value in found.items())
        url = "s3://bucket/pre"
        match place:
            case "url":
                url += f"?endpoint={server.endpoint}&region=eu-1&ca_bundle={authorities}"
            case "environment":
                world.set(AWS_ENDPOINT_URL=server.endpoint, AWS_DEFAULT_REGION="eu-1")
                world.set(AWS_CA_BUNDLE=str(authorities))
            case "config":
                world.write("config", f"[default]\n{lines}")
            case _:
                keys = "aws_access_key_id = RIGHT\naws_secret_access_key = secret\n"
                world.write("config", f"[profile ops]\n{keys}{lines}")
                url += "?profile=ops"
        await use_both_halves(url)
        assert "/eu-1/s3/" in server.headers[0]["Authorization"]


async def test_the_lake_names_the_cause_of_a_refusal(world: World) -> None:
    """An error of the table libraries contains what the store said, on one line."""
    world.set(AWS_ACCESS_KEY_ID="WRONG", AWS_SECRET_ACCESS_KEY="wrong")

    async with serve_memory({"RIGHT": "secret"}) as server:
        server.make_bucket("bucket")
        url = f"s3://bucket/pre?endpoint={server.endpoint}&region=us-east-1"
        with pytest.raises(StoreError, match="InvalidAccessKeyId") as refused:
            await asyncio.to_thread(find_table, url, LOGS)
        assert "\n" not in str(refused.value)
        assert "\x1b" not in str(refused.value)


def test_the_jvm_gets_the_same_connection(world: World) -> None:
    """S3A gets keys, endpoint, region and addressing of the store."""
    profile_of_the_url(world, "")
    url = "s3://bucket/pre?endpoint=http://127.0.0.1:7070&region=eu-1&profile=ops"
    conf = session_conf(SessionSettings(), delta=False, s3a=url)
    found = {name.removeprefix("spark.hadoop.fs.s3a."): value for name, value in conf.items()}
    assert found["access.key"] == "RIGHT"
    assert found["secret.key"] == "secret"
    assert found["endpoint"] == "http://127.0.0.1:7070"
    assert found["endpoint.region"] == "eu-1"
    assert found["path.style.access"] == "true"
