import pytest

from sluice_protocol.errors import BadUsage
from sluice_web.tokens import check_token_or_loopback, has_token


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_service_without_a_token_may_listen_on_loopback(host: str) -> None:
    check_token_or_loopback(host, "")


def test_a_service_beyond_loopback_needs_a_token() -> None:
    check_token_or_loopback("192.0.2.7", "t")
    with pytest.raises(BadUsage, match="api_token"):
        check_token_or_loopback("192.0.2.7", "")


def test_only_bearer_with_the_whole_token_is_accepted() -> None:
    assert has_token("Bearer s3cret", "s3cret")
    for given in (
        "",
        "Bearer ",
        "Bearer s3cre",
        "bearer s3cret",
        "s3cret",
        "Bearer ü",
        "Bearer \udcff",
    ):
        assert not has_token(given, "s3cret")


def test_an_empty_token_accepts_every_request() -> None:
    assert has_token("", "")
