import hashlib

import pytest

from sluice_protocol.errors import BadUsage
from sluice_web.tokens import check_token_or_loopback, has_token, operator_of, parse_operators


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


DIGESTS = [hashlib.sha256(token.encode()).hexdigest() for token in ("one", "two")]


def test_an_operator_is_known_by_the_digest_of_the_token() -> None:
    operators = parse_operators(f"alice={DIGESTS[0]}, bob.b@example={DIGESTS[1]},")
    assert operator_of("Bearer one", operators) == "alice"
    assert operator_of("Bearer two", operators) == "bob.b@example"
    for given in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer three",
        "bearer one",
        "one",
        f"Bearer {DIGESTS[0]}",
    ):
        assert operator_of(given, operators) is None
    assert operator_of("Bearer one", ()) is None
    assert operator_of("Bearer \udcff", operators) is None


@pytest.mark.parametrize(
    "text",
    [
        "alice",
        "alice=secret",
        f"alice={DIGESTS[0].upper()}",
        f"={DIGESTS[0]}",
        f"a b={DIGESTS[0]}",
        f"a={DIGESTS[0]},a={DIGESTS[1]}",
        f"a={DIGESTS[0]},b={DIGESTS[0]}",
    ],
)
def test_a_malformed_list_of_operators_is_refused_without_showing_a_secret(text: str) -> None:
    with pytest.raises(BadUsage, match="operators") as refused:
        parse_operators(text)
    assert "secret" not in str(refused.value)
