"""A record of a later version is named as such; every other deviation keeps its reason."""

import pytest

from sluice_protocol.authority import Authority
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.manifests import decode_record


@pytest.mark.parametrize(
    ("schema", "newer"),
    [
        ("sluice.authority.v2", True),
        ("sluice.authority.v10", True),
        ("sluice.authority.v0", False),
        ("sluice.authority.vx", False),
        ("sluice.another.v2", False),
        ("", False),
    ],
)
def test_only_a_later_version_of_the_same_record_is_newer(schema: str, newer: bool) -> None:
    with pytest.raises(InvalidRecord) as raised:
        decode_record("k", f'{{"schema":"{schema}","authority_id":"a"}}'.encode(), Authority)
    assert ("upgrade this process" in str(raised.value)) == newer


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"schema":1}',
        pytest.param(b'{"z":' + b"[" * 100_000, id="nested too deeply"),
    ],
)
def test_other_bytes_keep_their_reason(body: bytes) -> None:
    with pytest.raises(InvalidRecord) as raised:
        decode_record("k", body, Authority)
    assert "upgrade" not in str(raised.value)
