"""The gateways of the setting: fixed URLs, and every address of a name."""

import asyncio
from collections.abc import Sequence

import aiohttp
import pytest

from sluice_console.gateways import (
    ADDRESSES_MAX,
    FoundGateways,
    GatewayAddresses,
    look_up,
    url_of_address,
)
from sluice_protocol.errors import BadUsage


def found(*entries: str, addresses: Sequence[str] = (), tls_name: str = "") -> FoundGateways:
    async def looking(name: str, port: int) -> tuple[str, ...]:
        assert (name, port) in (("pods", 8080), ("pods", 443))
        if not addresses:
            raise OSError("no such name")
        return tuple(addresses)

    async def find() -> FoundGateways:
        async with aiohttp.ClientSession() as session:
            gateways = GatewayAddresses(entries, session, tls_name=tls_name, look_up=looking)
            return await gateways.find()

    return asyncio.run(find())


def test_urls_are_gateways_and_a_name_is_one_for_each_address() -> None:
    both = found("http://a:1/", "dns+http://pods:8080", addresses=("10.0.0.1", "fd00::1"))
    urls = [one.url for one in both.clients]
    assert urls == ["http://a:1", "http://10.0.0.1:8080", "http://[fd00::1]:8080"]
    assert both.unknown == ()


def test_a_name_without_addresses_is_one_problem_with_its_remedy() -> None:
    both = found("http://a:1", "dns+http://pods:8080")
    assert [one.url for one in both.clients] == ["http://a:1"]
    (unknown,) = both.unknown
    assert unknown.entry == "dns+http://pods:8080"
    assert "no such name; check the name" in unknown.problem


def test_the_certificate_is_that_of_the_name_unless_another_one_is_set() -> None:
    (client,) = found("dns+https://pods", addresses=("10.0.0.1",)).clients
    assert (client.url, client.tls_name) == ("https://10.0.0.1:443", "pods")
    (client,) = found("dns+https://pods", addresses=("10.0.0.1",), tls_name="public").clients
    assert client.tls_name == "public"
    (client,) = found("https://a", tls_name="public").clients
    assert client.tls_name == "public"


def test_the_addresses_of_one_name_are_bounded() -> None:
    many = [f"10.0.{n // 256}.{n % 256}" for n in range(ADDRESSES_MAX + 1)]
    assert len(found("dns+http://pods:8080", addresses=many).clients) == ADDRESSES_MAX


@pytest.mark.parametrize(
    "entry",
    ["gateway:8080", "dns+pods:8080", "dns+ftp://pods", "dns+http://", "dns+http://pods:8080/x",
     "dns+http://pods:99999", "dns+http://pods:0"],
)  # fmt: skip
def test_another_form_is_refused(entry: str) -> None:
    with pytest.raises(BadUsage, match="gateways must be"):
        found(entry)


def test_an_address_of_a_link_has_no_zone() -> None:
    assert url_of_address("http", "fe80::1%eth0", 80) == "http://[fe80::1]:80"


def test_the_machine_resolves_a_name_to_each_address_once() -> None:
    assert "127.0.0.1" in asyncio.run(look_up("localhost", 80))
    with pytest.raises(OSError, match=r".+"):
        asyncio.run(look_up("no-such-name.invalid", 80))
