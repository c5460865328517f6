"""A known path whose door is not open: a refusal in the form of its protocol, and nothing else."""

import json
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from support.door_client import DoorAnswer, TestSender, post
from support.gateway import Running, TestKey, running

from sluice_doors.api import DoorsApi
from sluice_doors.table import DOORS, HTTP_DOORS, DoorName

HOST = TestKey("host-1", ("host-1",))
SHOP = TestSender("shop", (), doors=get_args(DoorName))


def serve(tmp_path: Path, *doors: DoorName) -> AbstractAsyncContextManager[Running]:
    return running(tmp_path, HOST, SHOP, doors=doors)


def detail(door: DoorName, answer: DoorAnswer) -> str:
    """Return the reason of a refusal, as a client of a door reads it."""
    if door in {"prometheus", "loki"}:
        return answer.body.decode()
    body = json.loads(answer.body)
    match door:
        case "otlp":
            assert body["code"] == 12  # UNIMPLEMENTED
            return str(body["message"])
        case "json":
            assert (body["code"], body["retryable"]) == ("not_found", False)
            return str(body["detail"])
        case "elasticsearch":
            assert body["status"] == 404
            return str(body["error"]["reason"])
        case "firehose":
            assert set(body) == {"requestId", "timestamp", "errorMessage"}
            return str(body["errorMessage"])
        case _:
            assert body["code"] == 404
            return str(body["text"])


@pytest.mark.parametrize("open_door", ["json", None], ids=["one other", "none"])
async def test_each_closed_door_responds_in_its_form(
    tmp_path: Path, open_door: DoorName | None
) -> None:
    """The response is the same for every token, and counts as no request of a principal."""
    doors: tuple[DoorName, ...] = (open_door,) if open_door else ()

    async with serve(tmp_path, *doors) as served:
        fields = {"Content-Type": "application/json"}
        for door in (one for one in HTTP_DOORS if one not in doors):
            wanted = (
                "door is not open: no client can send here; start the server with"
                f" --doors {door}, door=`{door}`"
            )
            names = {"index": "web", "id": "1"}
            for path in (one.format(**names) for one in DOORS[door].paths):
                found = [
                    await post(served, path, b"{}" * 9, token, fields)
                    for token in (SHOP.token.token, "x")
                ]
                assert {answer.status for answer in found} == {404}
                assert {detail(door, answer) for answer in found} == {wanted}
                assert "WWW-Authenticate" not in found[0].headers


async def test_a_gateway_without_the_decoders_refuses_in_the_usual_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sluice_doors.otlp.http", None)

    async with serve(tmp_path) as served:
        fields = {"Content-Type": "application/x-protobuf"}
        answer = await post(served, "/v1/logs", b"x", SHOP.token.token, fields)
        assert answer.status == 404
        assert "--doors otlp" in json.loads(answer.body)["detail"]


async def test_closed_doors_are_not_described(tmp_path: Path) -> None:
    async with serve(tmp_path, "json") as served:
        described = json.loads((await served.client.get("/openapi.json"))[1])
        assert "/v1/ingest" in described["paths"]
        assert "/v1/logs" not in described["paths"]


def test_each_path_of_an_open_door_is_in_the_table() -> None:
    """A path that is missing in the table would be a plain 404 where its door is closed."""
    for door in HTTP_DOORS:
        service = SimpleNamespace(is_full=bool, now_ns=int)  # nothing else is called
        api = DoorsApi(service, [door], open_host=True)  # type: ignore[arg-type]
        sends = {one.path for one in api.endpoints() if one.described and one.body is bytes}
        assert sends == set(DOORS[door].paths)


def test_a_gateway_without_doors_imports_no_decoder() -> None:
    script = (
        "import sys, sluice_gateway.process.app, sluice_doors.api;"
        "sys.exit('google.protobuf' in sys.modules or 'sluice_doors.json.ingest' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
