import msgspec
import pytest

from sluice_protocol.errors import BadUsage, ErrorCode
from sluice_web.json_bodies import decode_body
from sluice_web.problems import problem_of, problem_response


class Colour(msgspec.Struct, frozen=True):
    """A body."""

    name: str


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"name":1}', b'"\xff"', b'{"a":' * 5000, b"[" * 5000]
)
def test_a_body_of_another_form_is_refused(body: bytes) -> None:
    """A deeply nested body, too, is a fault of the client."""
    with pytest.raises(BadUsage, match="body is not a valid Colour"):
        decode_body(body, Colour)


def test_a_problem_may_quote_text_that_is_not_unicode() -> None:
    response = problem_response(problem_of(ErrorCode.BAD_REQUEST, "not a name, name=`\udcff`"))
    assert b"name=`?`" in bytes(response.body)  # type: ignore[arg-type] # bytes
