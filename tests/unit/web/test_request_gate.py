"""The gate's decision, as a table of requests that browsers, clients and attackers send."""

import pytest
from aiohttp import HttpVersion, HttpVersion11
from multidict import CIMultiDict

from sluice_protocol.errors import BadUsage
from sluice_web.addresses import parse_allowed_hosts
from sluice_web.application import RequestHead, refusal_of

JSON = ("Content-Type", "application/json")
LOCAL = ("Host", "127.0.0.1:8081")


def refused(
    *fields: tuple[str, str],
    method: str = "GET",
    local: str = "127.0.0.1",
    allowed: str = "",
    scheme: str = "http",
    version: HttpVersion = HttpVersion11,
    open_host: bool = False,
    linked: bool = False,
) -> str:
    head = RequestHead(
        method=method,
        version=version,
        scheme=scheme,
        local_address=local,
        headers=CIMultiDict(fields),
        open_host=open_host,
        linked=linked,
    )
    return refusal_of(head, parse_allowed_hosts(allowed))


@pytest.mark.parametrize(
    ("host", "local", "allowed", "passes"),
    [
        ("127.0.0.1:8081", "127.0.0.1", "", True),
        ("127.0.0.1", "127.0.0.1", "", True),
        ("localhost:9000", "127.0.0.1", "", True),  # a forwarded port
        ("LOCALHOST", "127.0.0.1", "", True),
        ("[::1]:8081", "::1", "", True),
        ("localhost", "::1", "", True),
        ("localhost", "127.0.0.2", "", True),
        ("127.0.0.1", "::ffff:127.0.0.1", "", True),
        ("10.0.0.5:8081", "10.0.0.5", "", True),  # a listener on 0.0.0.0
        ("[2001:db8::5]", "2001:0db8:0::5", "", True),
        ("sluice.example", "10.0.0.5", "sluice.example", True),
        ("Sluice.Example:443", "10.0.0.5", "other.example, sluice.example", True),
        ("192.0.2.9", "10.0.0.5", "192.0.2.9", True),  # address translation
        ("evil.test:8081", "127.0.0.1", "", False),
        ("evil.test", "10.0.0.5", "sluice.example", False),
        ("sluice.example.evil.test", "10.0.0.5", "sluice.example", False),
        ("evil-sluice.example", "10.0.0.5", "sluice.example", False),
        ("localhost", "10.0.0.5", "", False),
        ("127.0.0.1", "10.0.0.5", "", False),
        ("10.0.0.6", "10.0.0.5", "", False),
        ("localhost.evil.test", "127.0.0.1", "", False),
        ("localhost@evil.test", "127.0.0.1", "", False),
        ("127.0.0.1:8081, evil.test", "127.0.0.1", "", False),
        ("127.0.0.1:x", "127.0.0.1", "", False),
        ("2130706433", "127.0.0.1", "", False),
        ("", "127.0.0.1", "", False),
        ("", "", "", False),
        ("127.0.0.1\udcff", "127.0.0.1", "", False),
    ],
)
def test_the_host_is_the_address_of_the_connection_or_an_allowed_name(
    host: str, local: str, allowed: str, passes: bool
) -> None:
    reason = refused(("Host", host), local=local, allowed=allowed)
    assert (reason == "") is passes
    assert passes or "allowed_hosts" in reason


def test_a_request_without_a_host_passes_only_in_http_1_0() -> None:
    """A health check of a load balancer may be HTTP/1.0; a browser is not."""
    assert refused(version=HttpVersion(1, 0)) == ""
    assert refused(("Host", "evil.test"), version=HttpVersion(1, 0))
    assert refused()
    assert refused(LOCAL, LOCAL)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize("open_host", [False, True])
@pytest.mark.parametrize(
    ("origin", "scheme", "passes"),
    [
        ("http://127.0.0.1:8081", "http", True),
        ("https://127.0.0.1:8081", "http", True),  # a proxy with TLS in front
        ("https://127.0.0.1:8081", "https", True),
        ("http://127.0.0.1:8081", "https", False),
        ("http://127.0.0.1:8082", "http", False),
        ("http://127.0.0.1", "http", False),
        ("http://localhost:8081", "http", False),
        ("http://evil.test:8081", "http", False),
        ("null", "http", False),
        ("", "http", False),
        ("file://", "http", False),
        ("chrome-extension://127.0.0.1:8081", "http", False),
        ("http://127.0.0.1:8081/", "http", False),
    ],
)
def test_an_origin_is_that_of_the_host(
    method: str, origin: str, scheme: str, passes: bool, open_host: bool
) -> None:
    fields = (LOCAL, JSON, ("Origin", origin))
    reason = refused(*fields, method=method, scheme=scheme, open_host=open_host)
    assert (reason == "") is passes


def test_default_ports_of_an_origin_are_equal_to_none() -> None:
    for origin, host in (("https://s.example", "s.example"), ("http://s.example", "s.example:80")):
        assert refused(("Host", host), ("Origin", origin), allowed="s.example") == ""
    assert refused(("Host", "s.example:81"), ("Origin", "http://s.example"), allowed="s.example")


@pytest.mark.parametrize(
    ("site", "passes"),
    [("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)],
)
def test_a_request_without_origin_is_judged_by_its_fetch_metadata(site: str, passes: bool) -> None:
    """An image or a script of a page is a GET without `Origin`."""
    assert (refused(LOCAL, ("Sec-Fetch-Site", site)) == "") is passes


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ((JSON,), True),
        ((("Content-Type", "Application/JSON; charset=utf-8"),), True),
        ((("Content-Type", "application/octet-stream"),), True),
        ((("Authorization", "Bearer t"),), True),
        ((("Signature-Input", "sig=()"),), True),
        ((("X-Requested-With", "curl"),), True),
        ((("Authorization", "Bearer t"), ("Content-Type", "text/plain")), True),
        ((), False),
        ((("Content-Type", ""),), False),
        ((("Content-Type", "json"),), False),
        ((("Content-Type", "text/plain"),), False),
        ((("Content-Type", "TEXT/PLAIN ; a=application/json"),), False),
        ((("Content-Type", "text/plain; charset=x, application/json"),), False),
        ((("Content-Type", "text/plain, application/json"),), False),
        ((("Content-Type", "multipart/form-data; boundary=x"),), False),
        ((("Content-Type", "application/x-www-form-urlencoded"),), False),
        ((JSON, ("Content-Type", "text/plain")), False),
        ((("Accept", "application/json"),), False),
    ],
)
def test_a_write_has_a_field_that_needs_a_preflight(
    method: str, fields: tuple[tuple[str, str], ...], passes: bool
) -> None:
    reason = refused(LOCAL, *fields, method=method)
    assert (reason == "") is passes
    assert passes or "application/json" in reason


def test_an_open_path_accepts_any_host_and_media_type() -> None:
    fields = (("Host", "gateways.example"), ("Content-Type", "text/plain"))
    assert refused(*fields, method="POST", open_host=True) == ""


@pytest.mark.parametrize("text", ["a.example:80", "http://a.example", "a b", "*.example"])
def test_allowed_hosts_are_names_or_addresses(text: str) -> None:
    with pytest.raises(BadUsage, match="allowed_hosts"):
        parse_allowed_hosts(text)


def test_allowed_hosts_are_separated_by_commas() -> None:
    found = parse_allowed_hosts(" A.Example , [2001:DB8::0:1],192.0.2.1,")
    assert found == {"a.example", "2001:db8::1", "192.0.2.1"}


@pytest.mark.parametrize(
    ("method", "mode", "dest", "passes"),
    [
        ("GET", "navigate", "document", True),
        ("GET", "navigate", "iframe", False),
        ("GET", "navigate", "", False),
        ("GET", "no-cors", "image", False),
        ("GET", "cors", "empty", False),
        ("POST", "navigate", "document", False),
    ],
)
def test_a_link_of_another_origin_opens_a_linked_path_only(
    method: str, mode: str, dest: str, passes: bool
) -> None:
    fields = [
        *(LOCAL, JSON, ("Sec-Fetch-Site", "cross-site")),
        *(("Sec-Fetch-Mode", mode), ("Sec-Fetch-Dest", dest)),
    ]
    assert (refused(*fields, method=method, linked=True) == "") is passes
    assert refused(*fields, method=method)
    strange = [("Host", "evil.test"), *fields[1:]]
    assert refused(*strange, method=method, linked=True), "after rebinding the host is strange"
