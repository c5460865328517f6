"""Who may ask a service for operators."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_protocol.services import check_open, holds_token, parse_listen


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:8383", ("::1", 8383)),
        ("a.b:65535", ("a.b", 65535)),
    ],
)
def test_parse_listen_gives_host_and_port(listen: str, found: tuple[str, int]) -> None:
    """An IPv6 address stands in brackets."""
    assert parse_listen(listen) == found


@pytest.mark.parametrize(
    "listen", ["8383", ":8383", "host:", "host:x", "host:65536", "[]:80", "host:٣", ""]
)
def test_parse_listen_refuses_other_forms(listen: str) -> None:
    """One line that says the form."""
    with pytest.raises(BadUsage, match="HOST:PORT"):
        parse_listen(listen)


def test_a_service_without_a_token_stays_on_this_machine() -> None:
    """Beyond a loopback address a token is needed."""
    for host in ("127.0.0.1", "::1", "localhost"):
        check_open(host, "")
    check_open("192.0.2.7", "t")
    with pytest.raises(BadUsage, match="api_token"):
        check_open("192.0.2.7", "")


def test_a_token_is_compared_whole() -> None:
    """Only `Bearer` and exactly the token; without a token everybody may ask."""
    assert holds_token("Bearer s3cret", "s3cret")
    assert holds_token("", "")
    for given in ("", "Bearer ", "Bearer s3cre", "bearer s3cret", "s3cret", "Bearer ü"):
        assert not holds_token(given, "s3cret")
