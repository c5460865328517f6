"""Which keys a command trusts that verifies signatures and makes none."""

import base64
from pathlib import Path

import pytest

from sluice_gc.signing_keys import key_id_of, load_trusted, make_key_file
from sluice_protocol.errors import BadUsage


def test_a_file_of_public_keys_is_trusted_without_a_private_key(tmp_path: Path) -> None:
    old, new = make_key_file(tmp_path / "old.pem"), make_key_file(tmp_path / "new.pem")
    lines = [base64.b64encode(one.public_bytes_raw()).decode() for one in (old, new)]
    public = tmp_path / "auditor.pub"
    public.write_text("\n".join(lines) + "\n")
    assert set(load_trusted(public)) == {key_id_of(old), key_id_of(new)}
    assert set(load_trusted(tmp_path / "old.pem")) == {key_id_of(old)}
    assert set(load_trusted(tmp_path / "old.pem", lines[1:])) == {key_id_of(new)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"three words here", "not a public key: expected base64 of 32 raw bytes, key=`three`"),
        (b"", "not a PEM key without a password"),
        (b"-----BEGIN CERTIFICATE-----", "not a PEM key without a password"),
        (b"\xff\xfe", "not a PEM key without a password"),
    ],
)
def test_a_file_with_neither_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(BadUsage, match=message):
        load_trusted(path)


def test_a_missing_file_is_refused_with_what_it_should_contain(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match='public key that "sluice audit key" prints'):
        load_trusted(tmp_path / "none")
