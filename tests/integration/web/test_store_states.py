"""Every GET of every service responds in every state of the store; an error states its cause."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.web_services import Services, served

from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_store.local import open_local_store

STREAMS = {"/v1/tail"}
"""Paths that respond until the client leaves."""


@contextmanager
def healthy(folder: Path) -> Iterator[None]:
    del folder
    yield


@contextmanager
def one_lane_ahead(folder: Path) -> Iterator[None]:
    """Publish a later time of one lane, as another reconciler does that has others."""
    now_ns = time.time_ns()
    record = DiscoveryRecord(
        complete_through_unix_ns=now_ns - 30 * NS_PER_S,
        listed=0,
        lanes={"000": now_ns + 3_600 * NS_PER_S},
    )

    async def write() -> None:
        async with open_local_store(folder / "store") as store:
            await store.overwrite(DISCOVERY, encode_record(record))

    asyncio.run(write())
    yield


@contextmanager
def store_away(folder: Path) -> Iterator[None]:
    (folder / "store").rename(folder / "away")
    try:
        yield
    finally:
        (folder / "away").rename(folder / "store")


def paths_of(services: Services, service: str) -> list[str]:
    """Return the paths of a service that need no value."""
    described = json.loads(services.request(service, "GET", "/openapi.json").body)
    found = [
        path
        for path, methods in described["paths"].items()
        if "get" in methods and "{" not in path and path not in STREAMS
    ]
    assert "/metrics" in found
    return found


OTHER_FORMS = ("/loki/", "/api/")
"""Paths of protocols whose errors have another form than a problem document."""


@pytest.mark.daily(2)
@pytest.mark.parametrize("state", [healthy, one_lane_ahead, store_away])
def test_every_path_responds(state: Callable[[Path], Iterator[None]], tmp_path: Path) -> None:
    with served(tmp_path) as services:
        paths = {name: paths_of(services, name) for name in ("gateway", "reconciler", "query")}
        with state(tmp_path):  # type: ignore[attr-defined]
            for service, known in paths.items():
                for path in known:
                    response = services.request(service, "GET", path)
                    where = (service, path, response.status, response.body[:300])
                    assert response.status not in (0, 500), where
                    if path.startswith(OTHER_FORMS):
                        assert response.status < 500 or b"store" in response.body, where
                    elif response.status > 500:
                        assert response.problem["code"] == "store_unavailable", where
                        assert len(response.problem["detail"]) > 20, where
        if state is one_lane_ahead:
            found = json.loads(services.request("reconciler", "GET", "/v1/discovery").body)
            assert found["lanes_behind_s"] == {"0": 0.0}
