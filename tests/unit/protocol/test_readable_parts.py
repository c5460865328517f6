"""The parts of a combined batch, as the readers of manifests use them."""

from msgspec import UNSET
from msgspec.structs import replace
from support.builders import manifest

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import accepted_key
from sluice_protocol.manifests import RequestPart, encode_parts, readable_parts

PART = RequestPart(request=b"r" * 16, start=2, count=3)
BATCH = manifest(count=10)


def test_the_parts_are_those_of_the_manifest() -> None:
    found: list[InvalidRecord] = []
    assert readable_parts(replace(BATCH, parts=encode_parts([PART])), found.append) == (PART,)
    assert readable_parts(replace(BATCH, parts=UNSET), found.append) == ()
    assert readable_parts(replace(BATCH, parts=""), found.append) == ()
    assert found == []


def test_unreadable_parts_are_none_and_are_reported() -> None:
    large = encode_parts([RequestPart(request=b"r" * 16, start=2, count=9)])
    for parts in ("?", large):
        found: list[InvalidRecord] = []
        batch = replace(BATCH, parts=parts)
        assert readable_parts(batch, found.append) == readable_parts(batch) == ()
        assert [one.key for one in found] == [accepted_key(BATCH.identity)]
