"""The local store and the real server behave as the reference model, verb by verb."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from support.memory_bucket import open_memory_store
from support.store_buckets import make_bucket
from support.store_machine import StorePair
from support.store_versitygw import CREDENTIALS, Server, versitygw

from sluice_store import StoreMode, open_store
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

QUICK = settings(max_examples=25, stateful_step_count=25, deadline=None)


class LocalAgainstModel(StorePair):
    """The directory compared with the model."""

    async def open(self) -> tuple[ObjectStore, ObjectStore]:
        model, _ = open_memory_store()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-machine-"))
        return model, await self.stack.enter_async_context(open_local_store(Path(folder)))


TestLocalAgainstModel = LocalAgainstModel.TestCase
TestLocalAgainstModel.settings = QUICK


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with versitygw(tmp_path_factory.mktemp("versitygw")) as running:
        yield running


@pytest.mark.s3
def test_versitygw_behaves_as_the_model(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random verbs have the same outcomes on the server and on the model."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    prefixes = (f"run-{number}" for number in itertools.count())

    class ServerAgainstModel(StorePair):
        """The server compared with the model; every run has a separate prefix."""

        made = False

        async def open(self) -> tuple[ObjectStore, ObjectStore]:
            model, _ = open_memory_store()
            url = server.url("machine", next(prefixes))
            if not ServerAgainstModel.made:
                await make_bucket(url)
                ServerAgainstModel.made = True
            return model, await self.stack.enter_async_context(open_store(url, StoreMode.CREATE))

    machine = ServerAgainstModel.TestCase
    machine.settings = QUICK
    machine().runTest()
