"""The remedy in a refusal of a request without a known token; it depends on no token."""

import base64

import pytest

from sluice_doors.requests import credentials_remedy, sent_token
from sluice_protocol.errors import Unauthenticated

TOKEN = "slt_x"


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("authorization", "remedy"),
    [
        (None, "send the token as `Authorization: Bearer TOKEN`"),
        (TOKEN, "begin Authorization with `Bearer`"),
        (f"Token {TOKEN}", "begin Authorization with `Bearer`"),
        (f"Bearer%20{TOKEN}", "begin Authorization with `Bearer`"),
        (f"Splunk: {TOKEN}", "begin Authorization with `Bearer`"),
        ("Bearer ", "begin Authorization with `Bearer`"),
        (basic(f"{TOKEN}:"), "the token is the password of HTTP basic"),
        ("Basic no base64", "the token is the password of HTTP basic"),
        (basic(f"any:{TOKEN}"), "check the token"),
        (f"Bearer {TOKEN}", "check the token"),
        (f"ApiKey {TOKEN}", "check the token"),
    ],
)
def test_each_mistake_has_its_remedy(authorization: str | None, remedy: str) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    assert credentials_remedy(headers).startswith(remedy)


@pytest.mark.parametrize("scheme", ["Bearer", "Splunk", "ApiKey"])
def test_a_remedy_is_a_form_that_is_read(scheme: str) -> None:
    assert sent_token({"Authorization": f"{scheme} {TOKEN}"}) == TOKEN
    assert sent_token({"Authorization": basic(f"any:{TOKEN}")}) == TOKEN
    with pytest.raises(Unauthenticated):
        sent_token({"Authorization": TOKEN})
