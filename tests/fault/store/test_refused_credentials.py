"""Credentials that another program rotates, or that are revoked early, are read again."""

import asyncio
from pathlib import Path

import pytest
from support.memory_bucket.server import serve_memory
from support.store_versitygw import CREDENTIALS

from sluice_protocol.errors import StoreDenied
from sluice_protocol.outcomes import Applied, Found, NotFound, ObjectInfo
from sluice_protocol.units import ObjectKey
from sluice_store.s3 import credentials as subject
from sluice_store.s3.sdk import open_s3_store
from sluice_store.s3.settings import parse_s3_url

KEY = ObjectKey("some/key")
FILE = "[{}]\naws_access_key_id = {}\naws_secret_access_key = secret\n"


def write(path: Path, text: str) -> None:
    path.write_text(text)


@pytest.fixture
def shared_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return path


@pytest.mark.parametrize("profile", ["default", "other"])
async def test_rotated_keys_are_used_without_a_restart(
    shared_file: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Each verb succeeds after its keys were replaced in the file and are refused by the store."""
    monkeypatch.setattr(subject, "REREAD_S", 0.0)
    write(shared_file, FILE.format(profile, "KEY0"))
    query = "" if profile == "default" else f"&profile={profile}"

    secrets = {"KEY0": "secret"}
    async with serve_memory(secrets) as server:
        server.make_bucket("bucket")
        url = f"s3://bucket/pre?endpoint={server.endpoint}&region=us-east-1{query}"
        async with open_s3_store(parse_s3_url(url)) as store:
            numbers = iter(range(1, 100))

            def rotate() -> None:
                secrets.clear()
                secrets[name := f"KEY{next(numbers)}"] = "secret"
                write(shared_file, FILE.format(profile, name))

            made = await store.create(KEY, b"one")
            assert isinstance(made, Applied)
            assert made.incarnation is not None
            rotate()
            assert isinstance(await store.create(ObjectKey("other"), b"x"), Applied)
            rotate()
            assert isinstance(await store.get(KEY), Found)
            rotate()
            assert isinstance(await store.head(KEY), ObjectInfo)
            rotate()
            assert isinstance(await store.head(ObjectKey("none")), NotFound)
            rotate()
            assert await anext(store.list(""))
            rotate()
            assert await anext(store.list_incarnations(""))
            rotate()
            await store.read_versioning()
            rotate()
            await store.delete(KEY, made.incarnation)
            assert isinstance(await store.get(KEY), NotFound)


def test_refused_keys_are_read_again_at_most_every_few_seconds(shared_file: Path) -> None:
    """While the file has the same keys, many refused requests cause one reading."""
    write(shared_file, FILE.format("default", "OLD"))
    read = 0

    async def run() -> None:
        nonlocal read
        async with serve_memory({}) as server:
            server.make_bucket("bucket")
            url = f"s3://bucket?endpoint={server.endpoint}&region=us-east-1"
            async with open_s3_store(parse_s3_url(url)) as store:
                source = subject.credential_source(None)
                load = source._load

                def count() -> object:
                    nonlocal read
                    read += 1
                    return load()

                source._load = count  # type: ignore[method-assign]
                for _ in range(20):
                    with pytest.raises(StoreDenied, match="InvalidAccessKeyId"):
                        await store.get(KEY)

    asyncio.run(run())
    assert read <= 1


async def test_a_file_in_the_middle_of_its_rotation_changes_nothing(
    shared_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that cannot be read now are kept, and read again after a later refusal."""
    monkeypatch.setattr(subject, "REREAD_S", 0.0)
    write(shared_file, FILE.format("default", "OLD"))

    async with serve_memory({"NEW": "secret"}) as server:
        server.make_bucket("bucket")
        url = f"s3://bucket?endpoint={server.endpoint}&region=us-east-1"
        async with open_s3_store(parse_s3_url(url)) as store:
            for torn in ("", "[default", "[default]\naws_access_key_id = NEW\n"):
                write(shared_file, torn)
                with pytest.raises(StoreDenied, match="InvalidAccessKeyId"):
                    await store.get(KEY)
            write(shared_file, FILE.format("default", "NEW"))
            assert isinstance(await store.get(KEY), NotFound)
