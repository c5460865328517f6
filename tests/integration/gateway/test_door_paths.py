"""Every path of a door accepts records; query parameters are used, ignored or refused."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import aiohttp
import pytest
from support.door_bodies import DOOR_CASES, JSON
from support.door_client import TestSender, accepted_frames
from support.gateway import Running, TestKey, running

from sluice_doors.table import DOORS, HTTP_DOORS, DoorName, methods_of
from sluice_protocol.columns import LogColumns

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))
DOCUMENT = b'{"@timestamp":"2026-11-22T00:00:00Z","message":"first"}'


@dataclass(frozen=True)
class PathCase:
    """A request to one path of a door, with its least usual method.

    Attributes:
        known: A parameter that the path reads; empty if it reads none.
        typo: The same with a typing error, or where it reads none, of a parameter of another door.
        foreign: What clients of the product that the door imitates send.
    """

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    known: str = ""
    typo: str = ""
    foreign: str = "pretty=true&timeout=1m"


def _case(door: str, path: str) -> PathCase:
    usual = DOOR_CASES[door]
    method = methods_of(path)[-1]
    url = path.replace("{index}", "web").replace("{id}", "7")
    body, headers = usual.body, usual.headers
    match door:
        case "elasticsearch":
            foreign = "pretty&refresh=wait_for&filter_path=took,errors&timeout=1m&routing=a&type=x"
            if "_bulk" in path:
                return PathCase(method, url, body, headers, foreign=foreign)
            return PathCase(method, url, DOCUMENT, JSON, "op_type=create", "optype=create", foreign)
        case "hec":
            if "/raw" in path:
                body, known, typo = b"first\nsecond\n", "sourcetype=app&channel=c", "sourctype=app"
            else:
                known, typo = "channel=c", "chanel=c"
            foreign = "auto_extract_timestamp=true&token=unused"
            return PathCase(method, url, body, headers, known, typo, foreign)
        case "json":
            return PathCase(method, url, body, headers, "time=time", "tim=time")
        case "otlp" if path in SIGNALS:
            return PathCase(method, url, SIGNALS[path], {"Content-Type": "application/json"})
        case _:
            return PathCase(method, url, body, headers)


METRICS = json.dumps(
    {"resourceMetrics": [{"scopeMetrics": [{"metrics": [
        {"name": "load", "gauge": {"dataPoints": [{"timeUnixNano": "1", "asDouble": 0.5}]}}
    ]}]}]}
).encode()  # fmt: skip


TRACES = json.dumps(
    {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a", "startTimeUnixNano": "1"}]}]}]}
).encode()


SIGNALS = {"/v1/metrics": METRICS, "/v1/traces": TRACES}


def _cases() -> Iterator[Any]:
    for door in HTTP_DOORS:
        for path in DOORS[door].paths:
            yield pytest.param(door, _case(door, path), id=f"{door}{path}")


async def send(served: Running, case: PathCase, query: str = "") -> tuple[int, str]:
    url = f"http://127.0.0.1:{served.port}{case.path}{'?' if query else ''}{query}"
    headers = {"Authorization": f"Bearer {SHOP.token.token}", **case.headers}
    async with (
        aiohttp.ClientSession() as session,
        session.request(case.method, url, data=case.body, headers=headers) as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize(("door", "case"), tuple(_cases()))
async def test_each_path_accepts_records(tmp_path: Path, door: DoorName, case: PathCase) -> None:
    async with running(tmp_path, HOST, SHOP, doors=(door,)) as served:
        status, text = await send(served, case)
        assert status in (200, 201, 204), text
        frames = await accepted_frames(served.store.inner)
        assert sum(frame.envelope.count for frame in frames) >= 1
        bodies = [
            body
            for frame in frames
            if isinstance(frame.columns, LogColumns)
            for body in frame.columns.body.slices()
        ]
        others = (*SIGNALS, *DOORS["prometheus"].paths)
        assert case.path in others or b"first" in bodies


@pytest.mark.parametrize(("door", "case"), tuple(_cases()))
async def test_parameters_are_used_ignored_or_refused(
    tmp_path: Path, door: DoorName, case: PathCase
) -> None:
    async with running(tmp_path, HOST, SHOP, doors=(door,)) as served:
        if case.known:
            status, text = await send(served, case, case.known)
            assert status in (200, 201), text
            status, text = await send(served, case, case.typo)
            assert status == 400, text
            if door != "hec":  # the texts of its codes are fixed
                wanted = case.known.partition("=")[0]
                assert f"did you mean {wanted}?" in text
        status, text = await send(served, case, case.foreign)
        if door == "json":
            assert status == 400, text
            assert "parameter is not known, parameter=`pretty`" in text
        else:
            assert status in (200, 201, 204), text


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("POST", "/web/_doc", None),
        ("PUT", "/web/_doc/7", "7"),
        ("POST", "/web/_doc/7", "7"),
        ("PUT", "/web/_create/7", "7"),
        ("POST", "/web/_create/7", "7"),
    ],
)
async def test_a_document_is_answered_as_the_index_api_does(
    tmp_path: Path, method: str, path: str, named: str | None
) -> None:
    async with running(tmp_path, HOST, SHOP, doors=("elasticsearch",)) as served:
        status, text = await send(served, PathCase(method, path, DOCUMENT, JSON))
        found = json.loads(text)
        assert (status, found["_index"], found["result"]) == (201, "web", "created")
        assert named is None or found["_id"] == named
