"""A record of another version is named as such; every other deviation keeps its reason."""

import pickle

import pytest

from sluice_protocol.authority import Authority
from sluice_protocol.errors import (
    ErrorCode,
    InvalidRecord,
    UnsupportedRecord,
    UnsupportedVersion,
    describe_version,
)
from sluice_protocol.manifests import decode_record


def _refusal(body: bytes) -> InvalidRecord:
    with pytest.raises(InvalidRecord) as raised:
        decode_record("k", body, Authority)
    return raised.value


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (2, "a newer version of sluice made it: update this one"),
        (10, "a newer version of sluice made it: update this one"),
        (0, "an unreleased version of sluice made it: create it again with this one"),
    ],
)
def test_a_record_of_another_version_names_its_writer_and_what_to_do(
    version: int, sentence: str
) -> None:
    refused = _refusal(b'{"schema":"sluice.authority.v%d","authority_id":"a"}' % version)
    assert isinstance(refused, UnsupportedRecord)
    assert str(refused) == (
        f"unsupported version of sluice.authority: {sentence},"
        f" found=`{version}`, supported=`1`, location=`k`"
    )
    assert refused.code is ErrorCode.CORRUPT_OBJECT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"schema":1}',
        b'{"schema":""}',
        b'{"schema":"sluice.authority.vx"}',
        b'{"schema":"sluice.authority.v1"}',
        b'{"schema":"sluice.another.v2"}',
        pytest.param(b'{"schema":"sluice.authority.v' + b"9" * 5_000 + b'"}', id="many digits"),
        pytest.param(b'{"z":' + b"[" * 100_000, id="nested too deeply"),
    ],
)
def test_other_bytes_keep_their_reason(body: bytes) -> None:
    refused = _refusal(body)
    assert not isinstance(refused, UnsupportedRecord)
    assert "version of sluice" not in str(refused)


@pytest.mark.parametrize("kind", [UnsupportedVersion, UnsupportedRecord])
def test_both_errors_have_one_sentence_and_reach_a_worker_process(
    kind: type[UnsupportedVersion] | type[UnsupportedRecord],
) -> None:
    made = kind("queue register", 2, 1, "k")
    sent = pickle.loads(pickle.dumps(made))  # noqa: S301 - made on the line above
    assert str(sent) == str(made)
    assert str(made) == f"{describe_version('queue register', 2, 1)}, location=`k`"
    assert (sent.what, sent.found, sent.known) == ("queue register", 2, 1)
