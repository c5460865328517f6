"""`verify.compare_faults`: the pages contain its results, and sluice ships every line once."""

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from verify.compare_faults import (
    FAULTS,
    FIRST_PAGE,
    PAGE,
    RESULTS,
    Faults,
    compare,
    merged,
    section,
    table,
)
from verify.link import TLS_HANDSHAKE, FaultyLink, linked
from verify.shippers import FLUENT_BIT_VERSION, SHIPPERS

BUILD = Path(__file__).parents[2] / "deploy/clients/build.sh"


def test_the_pages_contain_the_stored_results() -> None:
    results = json.loads(RESULTS.read_text())
    assert list(results["faults"]) == list(FAULTS)
    assert list(results["shippers"]) == list(SHIPPERS)
    assert section(results) in PAGE.read_text()
    assert table(results) in FIRST_PAGE.read_text()


def test_a_run_of_one_shipper_replaces_only_its_column() -> None:
    stored = json.loads(RESULTS.read_text())
    name = "syslog-ng"
    new = {
        **stored,
        "shippers": {name: stored["shippers"]["sluice"] | {"revision": "new"}},
        "faults": {fault: {name: {"sent": 7, "lost": 1, "doubled": 2}} for fault in FAULTS},
    }
    found = merged(stored, new)
    assert list(found["shippers"]) == list(stored["shippers"])
    assert found["shippers"][name]["revision"] == "new"
    assert found["faults"]["none"][name] == {"sent": 7, "lost": 1, "doubled": 2}
    for other in stored["shippers"].keys() - {name}:
        assert found["shippers"][other] == stored["shippers"][other]
        for fault in FAULTS:
            assert found["faults"][fault].get(other) == stored["faults"][fault].get(other)


@pytest.mark.parametrize(("responses_each_s", "lasts_s"), [(1, 20), (0.25, 40), (0, 120)])
def test_responses_are_lost_until_a_shipper_of_few_requests_lost_ten(
    monkeypatch: pytest.MonkeyPatch, responses_each_s: float, lasts_s: float
) -> None:
    link = FaultyLink(list, random.Random(1))
    slept_s = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal slept_s
        assert link.drop_share == 0.3
        slept_s += seconds
        link.fired = int(slept_s * responses_each_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    shipper = cast(Any, SimpleNamespace(store_link=link))
    asyncio.run(Faults(shipper, link.rng, 1.0).response_lost())
    assert slept_s == lasts_s
    assert link.drop_share == 0.0


def test_a_link_drops_responses_but_no_handshake_of_tls() -> None:
    hello = TLS_HANDSHAKE + b"hello"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello)
        await reader.read(1)
        writer.write(b"HTTP/1.1 200 OK")
        writer.close()

    async def run() -> tuple[bytes, bytes, int]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = FaultyLink(lambda: [port], random.Random(1), drop_share=1.0)
        async with server, linked(link):
            reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
            handshake = await reader.readexactly(len(hello))
            writer.write(b"x")
            response = await reader.read()
            writer.close()
            await asyncio.sleep(0.1)  # the transports of the link close
        return handshake, response, link.fired

    assert asyncio.run(run()) == (hello, b"", 2)  # the response, and the end of the link


def test_the_compared_fluent_bit_is_the_one_that_is_built() -> None:
    assert f"fluent_bit_s3() {{\n  local version={FLUENT_BIT_VERSION} " in BUILD.read_text()


@pytest.mark.long
@pytest.mark.s3
@pytest.mark.timeout(900)
def test_sluice_stores_every_line_once() -> None:
    faults = ["response_lost", "reader_killed_in_outage", "disk_full_in_outage", "other_instance"]
    results = asyncio.run(compare(["sluice"], faults, seed=1, outage_s=10))
    for fault in faults:
        found = results["faults"][fault]["sluice"]
        assert found["firings"], fault
        assert (found["lost"], found["doubled"]) == (0, 0), (fault, found)
