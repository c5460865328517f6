"""Certificates are verified without a store; errors name what is altered, missing or moved."""

import hashlib

import msgspec
import pytest
from support.gc_world import AUDITOR_KEY, RIVAL, TRUSTED, certificate, key_range

from sluice_gc.audit.certificate import (
    AuditCounts,
    sign_certificate,
    verify_certificate,
    verify_chain,
)
from sluice_gc.errors import AuditIncomplete, CertificateInvalid
from sluice_gc.key_ranges import (
    DigestShard,
    KeyRange,
    MerkleTree,
    agent_end,
    agent_prefix,
    cover_prefix,
    join_bounds,
    listed_leaf,
    merkle_node,
    merkle_root,
    parse_shard,
    split_shards,
)
from sluice_protocol.errors import BadUsage
from sluice_protocol.keys import RAW_BLOBS, digest_of


def chain(length: int) -> list[bytes]:
    bodies: list[bytes] = []
    for index in range(length):
        before = bodies[-1] if bodies else None
        one = certificate(index, before, f"A{index}")
        bodies.append(sign_certificate(one, AUDITOR_KEY))
    return bodies


def test_chain_is_valid() -> None:
    """A chain of certificates is valid without a store."""
    assert [one.audit_id for one in verify_chain(chain(3), TRUSTED)] == ["A0", "A1", "A2"]


@pytest.mark.parametrize(
    ("tamper", "named"),
    [
        (lambda b: [b[0], None, b[2]], "#1"),
        (lambda b: [b[0], b[2], b[1]], "A2"),
        (lambda b: [b[0], b[1].replace(b'"accepted":1', b'"accepted":2'), b[2]], "#1"),
        (lambda b: [b[0], b[1] + b" ", b[2]], "#1"),
        (lambda b: [b[1], b[2]], "A1"),
        (lambda b: [b[0], sign_certificate(certificate(1, b[0], "A1"), RIVAL), b[2]], "#1"),
        (lambda b: [b[0], sign_certificate(certificate(1, b"x", "A1"), AUDITOR_KEY), b[2]], "A1"),
    ],
    ids=["missing", "reordered", "altered", "respelled", "head cut", "foreign key", "relinked"],
)
def test_error_names_the_wrong_certificate(tamper: object, named: str) -> None:
    """An altered, missing or reordered certificate is named."""
    with pytest.raises(CertificateInvalid) as wrong:
        verify_chain(tamper(chain(3)), TRUSTED)
    assert wrong.value.audit_id == named


@pytest.mark.parametrize(
    "change",
    [
        {"coverage": certificate().coverage[:4]},
        {"merkle_root": digest_of(b"other")},
        {
            "coverage": (
                *certificate().coverage[:4],
                msgspec.structs.replace(certificate().coverage[4], objects=4),
            )
        },
    ],
)
def test_signed_certificate_without_full_coverage_is_refused(change: dict[str, object]) -> None:
    """A correctly signed but incomplete certificate is refused."""
    body = sign_certificate(msgspec.structs.replace(certificate(), **change), AUDITOR_KEY)
    with pytest.raises(CertificateInvalid):
        verify_certificate("A0", body, TRUSTED)


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [key_range("", "m")],
        [key_range("a")],
        [key_range("", "m"), key_range("n")],
        [key_range("", "m"), key_range("l")],
        [key_range(), key_range("m")],
        [key_range(pages=0)],
    ],
)
def test_ranges_must_be_contiguous(ranges: list[KeyRange]) -> None:
    """Ranges without pages, with a gap or with an overlap are refused."""
    with pytest.raises(AuditIncomplete):
        cover_prefix("p/", ranges)


def test_coverage_does_not_depend_on_the_order_of_ranges() -> None:
    """The coverage is the same for ranges in any order."""
    parts = [key_range("", "m"), key_range("m", "t"), key_range("t")]
    assert cover_prefix("p/", parts) == cover_prefix("p/", reversed(parts))


def test_merkle_root_is_that_of_rfc_9162() -> None:
    """The incremental root equals the recursive definition for every size up to 20."""

    def recursive(leaves: list[bytes]) -> bytes:
        if len(leaves) == 1:
            return leaves[0]
        half = 1 << (len(leaves) - 1).bit_length() - 1
        return merkle_node(recursive(leaves[:half]), recursive(leaves[half:]))

    assert MerkleTree().root() == hashlib.sha256(b"").hexdigest()
    for size in range(1, 21):
        leaves = [listed_leaf(f"k{at}", "e") for at in range(size)]
        assert merkle_root(leaves) == recursive(leaves).hex()


def test_shards_are_contiguous() -> None:
    """Neighbouring bounds are equal, the ends are open, and names can be parsed."""
    for count in (1, 2, 16, 256):
        shards = split_shards(count)
        bounds = [shard.bounds(RAW_BLOBS) for shard in shards]
        assert bounds[0][0] == ""
        assert bounds[-1][1] is None
        assert [end for _, end in bounds[:-1]] == [start for start, _ in bounds[1:]]
        assert [parse_shard(shard.name) for shard in shards] == list(shards)


def test_shard_contains_exactly_its_keys() -> None:
    """A key is between the bounds of the shard of its first byte, and of no other shard."""
    for digest in (digest_of(bytes([at])) for at in range(64)):
        key = f"{RAW_BLOBS}sha256/{digest[:2]}/{digest[2:4]}/{digest}.lmbatch"
        holds = [
            shard
            for shard in split_shards(256)
            for start, end in [shard.bounds(RAW_BLOBS)]
            if start < key and (end is None or key <= end)
        ]
        assert holds == [DigestShard(first=int(digest[:2], 16), end=int(digest[:2], 16) + 1)]


@pytest.mark.parametrize("text", ["", "00", "0-f", "00-zz", "10-0f", "00-100"])
def test_shard_name_of_another_form_is_refused(text: str) -> None:
    """The name of a shard is two ascending bytes in hexadecimal."""
    with pytest.raises(BadUsage):
        parse_shard(text)


def test_shard_count_must_divide() -> None:
    """A count that does not divide 256 is refused."""
    with pytest.raises(BadUsage):
        split_shards(3)


def test_bounds_never_split_an_agent() -> None:
    """Every key of an agent is on one side of a bound, also if ids share a prefix."""
    keys = [f"accepted/v1/agent={a}/boot=aa/1-2.json" for a in ("61", "6161", "61ff", "62")]
    places = [agent_prefix(key) for key in keys]
    for at, place in enumerate(places):
        assert [key <= agent_end(place) for key in keys] == [n <= at for n in range(len(keys))]
    assert join_bounds(["b", "d"]) == [("", "b"), ("b", "d"), ("d", None)]


def test_sum_of_counts_is_the_sum_of_each_field() -> None:
    """The sum of two counts is the sum of each field."""
    one = AuditCounts(accepted=1, gaps=2)
    assert one.plus(AuditCounts(accepted=3)) == AuditCounts(accepted=4, gaps=2)
