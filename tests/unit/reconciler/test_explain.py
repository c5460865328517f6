"""What is read to explain one batch: one lane, and the work lists of its time."""

import pytest
from support.builders import make_identity
from support.queue_store import SimStore
from support.reconciler_seed import accept_logs
from support.reconciler_world import make

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, UnsupportedVersion
from sluice_protocol.frame import FRAME_VERSION
from sluice_protocol.keys import WORK_LISTS, accepted_by_blob_key, accepted_key, blob_key, digest_of
from sluice_protocol.manifests import encode_reference
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.explain import RecordPlace, find_batches, parse_subject, read_batch_paths
from sluice_reconciler.lanes.state import LANES
from sluice_store.authority import create_authority

AUTHORITY = Authority(authority_id="A", lanes=4)
BATCHES = 20


async def test_of_a_long_backlog_only_the_work_lists_of_the_batch_are_read(
    store: SimStore,
) -> None:
    await create_authority(store, AUTHORITY)
    batches = []
    for number in range(BATCHES):
        store.clock.at_ns += NS_PER_S
        agent = f"host-{number % 5}"
        at_ns = store.clock.at_ns
        one = await accept_logs(store, ["a"], seq=number, at_ns=at_ns, agent=agent)
        batches.append(one)
        await make(store, number, authority=AUTHORITY).once()
    called: set[tuple[str, str]] = set()
    store.before = lambda verb, key: called.add((verb, key))
    [path] = await read_batch_paths(store, batches[7].identity)
    assert [(one.enqueued, one.sequence is None) for one in path.queues] == [(True, False)]
    read = [key for verb, key in called if verb == "get"]
    assert sum(key.startswith(WORK_LISTS) for key in read) == 1
    assert sum(key.startswith(LANES) for key in read) == 1


@pytest.mark.parametrize(
    ("seq", "start"),
    [(0, 0), (2, 0), (3, 3), (1_500, 3), (40_002, 3), (40_003, 40_003), (40_004, None)],
)
async def test_a_record_leads_to_its_batch_whatever_its_size(seq: int, start: int | None) -> None:
    """Batches of 3, 40 000 and 1 records: the second one is found behind a longer list."""
    store = SimStore()
    batches = [
        make_identity(0, count=3),
        make_identity(3, count=40_000),
        make_identity(40_003, count=1),
    ]
    for one in batches:
        await store.create(accepted_key(one), b"{}")
    await store.create(accepted_key(make_identity(1, agent="host-2")), b"{}")
    prefix = accepted_key(batches[0]).rpartition("/")[0]
    await store.create(ObjectKey(f"{prefix}/{40_000:020d}-foreign"), b"{}")
    place = parse_subject(f"{batches[0].agent_id}/{batches[0].boot_id}/{seq}")
    assert isinstance(place, RecordPlace)
    found = [one.seq_start for one in await find_batches(store, place)]
    assert found == ([] if start is None else [start])


async def test_every_batch_of_an_overlap_is_found(store: SimStore) -> None:
    overlapping = [make_identity(0, count=10), make_identity(5, count=10)]
    for one in overlapping:
        await store.create(accepted_key(one), b"{}")
    who = overlapping[0]
    place = RecordPlace(agent_id=who.agent_id, boot_id=who.boot_id, seq=7)
    assert await find_batches(store, place) == overlapping


async def test_a_blob_leads_to_its_batch_without_reverse_references(store: SimStore) -> None:
    """Through its envelope."""
    await create_authority(store, AUTHORITY)
    one = await accept_logs(store, ["a"], seq=1, at_ns=1)
    assert [path.identity for path in await read_batch_paths(store, one.digest)] == [one.identity]


async def test_a_frame_of_a_later_release_leads_to_its_batch_by_a_reverse_reference() -> None:
    store = SimStore()
    await create_authority(store, AUTHORITY)
    one = await accept_logs(store, ["a"], seq=1, at_ns=1)
    found = await store.get(blob_key(one.digest))
    later = found.body[:4] + bytes((FRAME_VERSION + 1,)) + found.body[5:]
    digest = digest_of(later)
    await store.create(blob_key(digest), later)
    with pytest.raises(UnsupportedVersion):
        await read_batch_paths(store, digest)
    reference = accepted_by_blob_key(digest, one.identity)
    await store.create(reference, encode_reference(accepted_key(one.identity)))
    assert [path.identity for path in await read_batch_paths(store, digest)] == [one.identity]


def test_a_subject_may_be_the_key_of_a_manifest() -> None:
    who = make_identity(3, count=4, agent="a/b c")
    assert parse_subject(accepted_key(who)) == who
    for text in ("accepted/v1/other", "host-1/boot/x", "host-1/boot/-1", "host-1/5", "nothing"):
        with pytest.raises(BadUsage):
            parse_subject(text)
