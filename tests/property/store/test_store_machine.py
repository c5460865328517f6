"""The local store and the real server behave as the reference model, verb by verb.

Two stores compared: each verb runs on both and must have the same outcome.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from support.memory_bucket import open_memory_store
from support.store_versitygw import CREDENTIALS, Server, make_bucket, versitygw

from sluice_protocol.outcomes import Applied, Found, ObjectInfo
from sluice_protocol.units import NULL_VERSION, ETag, ObjectKey, ObjectVersion
from sluice_store import StoreMode, open_store
from sluice_store.conformance import collect_incarnations, collect_keys
from sluice_store.local import open_local_store
from sluice_store.port import ObjectStore

KEYS = [ObjectKey(f"k/{name}") for name in ("a", "a-", "b/c")]
REGISTERS = [ObjectKey(f"r/{name}") for name in ("x", "y")]


@dataclass(frozen=True)
class Written:
    """One applied write, with the names that each of the two stores gave it."""

    body: bytes
    tags: tuple[ETag, ETag]
    incarnations: tuple[ObjectVersion, ObjectVersion]


class StorePair(RuleBasedStateMachine):
    """Random verbs over few keys. Bodies never repeat, so that a tag identifies a state on both."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.stores = self.runner.run(self.open())
        self.written: dict[ObjectKey, list[Written]] = {key: [] for key in KEYS + REGISTERS}
        self.bodies = 0

    async def open(self) -> tuple[ObjectStore, ObjectStore]:
        """Open the two stores, empty."""
        raise NotImplementedError

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def _both(self, *work: Awaitable[Any]) -> tuple[Any, Any]:
        async def run() -> tuple[Any, Any]:
            return await work[0], await work[1]

        return self.runner.run(run())

    def _body(self) -> bytes:
        self.bodies += 1
        return f"body {self.bodies}".encode() * (self.bodies % 3 + 1)

    def _note(self, key: ObjectKey, body: bytes, one: Any, two: Any) -> None:
        assert type(one) is type(two), (one, two)
        if isinstance(one, Applied) and isinstance(two, Applied):
            found = (one.incarnation or NULL_VERSION, two.incarnation or NULL_VERSION)
            self.written[key].append(
                Written(body=body, tags=(one.etag, two.etag), incarnations=found)
            )

    def _same(self, key: ObjectKey, one: Any, two: Any, *, whole: bool = True) -> None:
        """Compare two states by the write that made them: the names differ, the write must not.

        A ranged read need not report the checksum of the whole object.
        """
        assert type(one) is type(two), (one, two)
        if not isinstance(one, ObjectInfo):
            return
        known = {(w.tags[0], w.incarnations[0]): w for w in self.written[key]}
        state = known[one.etag, one.incarnation or NULL_VERSION]
        assert (two.etag, two.incarnation) == (state.tags[1], state.incarnations[1])
        assert one.size_bytes == two.size_bytes == len(state.body)
        if whole:
            assert one.sha256 == two.sha256

    @rule(key=st.sampled_from(KEYS + REGISTERS))
    def create(self, key: ObjectKey) -> None:
        body = self._body()
        self._note(key, body, *self._both(*(store.create(key, body) for store in self.stores)))

    @rule(key=st.sampled_from(KEYS))
    def overwrite(self, key: ObjectKey) -> None:
        body = self._body()
        self._note(key, body, *self._both(*(store.overwrite(key, body) for store in self.stores)))

    @rule(key=st.sampled_from(REGISTERS), pick=st.integers(0, 5))
    def replace(self, key: ObjectKey, pick: int) -> None:
        if not self.written[key]:
            return
        state = self.written[key][-1 - pick % len(self.written[key])]
        body = self._body()
        one, two = self.stores
        outcomes = self._both(
            one.replace(key, body, if_match=state.tags[0]),
            two.replace(key, body, if_match=state.tags[1]),
        )
        self._note(key, body, *outcomes)

    @rule(key=st.sampled_from(KEYS), pick=st.integers(0, 5))
    def delete(self, key: ObjectKey, pick: int) -> None:
        if not self.written[key]:
            return
        state = self.written[key][-1 - pick % len(self.written[key])]
        one, two = self.stores
        outcomes = self._both(
            one.delete(key, state.incarnations[0]), two.delete(key, state.incarnations[1])
        )
        assert type(outcomes[0]) is type(outcomes[1]), outcomes

    @rule(key=st.sampled_from(KEYS + REGISTERS))
    def head(self, key: ObjectKey) -> None:
        self._same(key, *self._both(*(store.head(key) for store in self.stores)))

    @rule(key=st.sampled_from(KEYS), pick=st.integers(0, 5))
    def head_incarnation(self, key: ObjectKey, pick: int) -> None:
        if not self.written[key]:
            return
        state = self.written[key][-1 - pick % len(self.written[key])]
        one, two = self.stores
        infos = self._both(
            one.head_incarnation(key, state.incarnations[0]),
            two.head_incarnation(key, state.incarnations[1]),
        )
        self._same(key, *infos)

    @rule(
        key=st.sampled_from(KEYS + REGISTERS),
        first=st.integers(0, 40),
        size=st.none() | st.integers(1, 40),
    )
    def get(self, key: ObjectKey, first: int, size: int | None) -> None:
        last = None if size is None else first + size - 1
        one, two = self._both(*(store.get(key, first=first, last=last) for store in self.stores))
        assert type(one) is type(two), (one, two)
        if isinstance(one, Found) and isinstance(two, Found):
            assert one.body == two.body
            self._same(key, one.info, two.info, whole=first == 0 and last is None)

    @rule(
        prefix=st.sampled_from(["", "k/", "k/a", "r/", "none/"]),
        after=st.sampled_from(["", *KEYS]),
        end=st.sampled_from([None, *KEYS]),
    )
    def list(self, prefix: str, after: str, end: str | None) -> None:
        one, two = self._both(
            *(collect_keys(store, prefix, start_after=after, end_at=end) for store in self.stores)
        )
        assert [(row.key, row.size_bytes) for row in one] == [
            (row.key, row.size_bytes) for row in two
        ]

    @rule()
    def list_incarnations(self) -> None:
        one, two = self._both(*(collect_incarnations(store, "k/") for store in self.stores))
        names = {w.incarnations[0]: w.incarnations[1] for key in KEYS for w in self.written[key]}
        assert [(row.key, names[row.incarnation], row.current) for row in one] == [
            (row.key, row.incarnation, row.current) for row in two
        ]


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
