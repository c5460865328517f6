"""An object that follows another one of its group: what is written, and in which order."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.store_groups import GroupFiles

from sluice_protocol.authority import VISIBILITY_S_MAX as BOUND_S
from sluice_protocol.errors import StoreError
from sluice_protocol.outcomes import Applied, Exists, ObjectInfo, Unknown
from sluice_protocol.units import ObjectKey
from sluice_store.bulk import NewObject
from sluice_store.pairs import NewPair, PairOutcome

BODIES, FIRST_NAMES, SECOND_NAMES = 0, 1, 2
"""The syncs of a group with pairs, in their order."""


class Store(GroupFiles):
    """The files of a store whose syncs are counted."""

    def create(self, *pairs: NewPair) -> list[PairOutcome | StoreError]:
        found = self.files.create_pairs(pairs)
        assert found is not None
        assert list(self.layout.temporary.iterdir()) == []
        return found

    def create_one(self, pair: NewPair) -> PairOutcome:
        [found] = self.create(pair)
        assert isinstance(found, PairOutcome)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.stamps.close()


def new(key: str, body: bytes = b"body") -> NewObject:
    return NewObject(key=ObjectKey(key), body=body)


def pair_of(name: str, second: str = "") -> NewPair:
    """Return a pair whose second body has the time of the first."""

    def follow(first: Applied) -> NewObject:
        return new(second or f"second/{name}", str(first.date_ns).encode())

    return NewPair(first=new(f"first/{name}"), follow=follow)


def test_pairs_share_three_syncs(store: Store) -> None:
    """The second body contains the outcome that is reported for the first."""
    found = store.create(*(pair_of(name) for name in "abc"))
    assert store.syncs.calls == 3
    stamps = []
    for name, one in zip("abc", found, strict=True):
        assert isinstance(one, PairOutcome)
        assert isinstance(one.first, Applied)
        assert isinstance(one.second, Applied)
        assert store.body(f"second/{name}") == str(one.first.date_ns).encode()
        for key, outcome in ((f"first/{name}", one.first), (f"second/{name}", one.second)):
            head = store.files.head(ObjectKey(key))
            assert isinstance(head, ObjectInfo)
            assert (head.etag, head.last_modified_ns) == (outcome.etag, outcome.date_ns)
            stamps.append(outcome.date_ns)
    assert len(set(stamps)) == len(stamps)
    assert store.stamps.next_ns() > max(stamps)


def test_a_group_without_anything_that_follows_has_two_syncs(store: Store) -> None:
    """Also if `follow` decides that nothing follows."""
    store.create(NewPair(first=new("a")), NewPair(first=new("b"), follow=lambda _: None))
    assert store.syncs.calls == 2


def test_nothing_follows_an_object_that_exists(store: Store) -> None:
    store.create(NewPair(first=new("first/a")))
    found = store.create_one(pair_of("a"))
    assert isinstance(found.first, Exists)
    assert found.second is None
    assert store.body("second/a") is None


def test_the_first_of_two_equal_pairs_has_both_objects(store: Store) -> None:
    """The other one created nothing, so nothing follows it."""
    one, other = store.create(pair_of("a"), pair_of("a", second="other"))
    assert isinstance(one, PairOutcome)
    assert isinstance(one.second, Applied)
    assert isinstance(other, PairOutcome)
    assert isinstance(other.first, Exists)
    assert store.body("other") is None


def test_a_second_object_that_exists_is_not_changed(store: Store) -> None:
    store.create(NewPair(first=new("second/a", b"old")))
    found = store.create_one(pair_of("a"))
    assert isinstance(found.first, Applied)
    assert isinstance(found.second, Exists)
    assert store.body("second/a") == b"old"


def test_a_refused_first_object_is_an_error_of_its_caller_only(store: Store) -> None:
    asked: list[Applied] = []

    def follow(first: Applied) -> NewObject:
        asked.append(first)
        return new("second/bad")

    bad, good = store.create(NewPair(first=new("../bad"), follow=follow), pair_of("a"))
    assert isinstance(bad, StoreError)
    assert isinstance(good, PairOutcome)
    assert isinstance(good.second, Applied)
    assert asked == []
    assert store.body("second/bad") is None


def test_a_refused_second_object_leaves_the_first(store: Store) -> None:
    """The caller creates it separately, and receives its error then."""
    found = store.create_one(pair_of("a", second="../bad"))
    assert isinstance(found.first, Applied)
    assert found.second is None
    assert store.body("first/a") == b"body"


def test_bodies_that_may_not_be_durable_get_no_name(store: Store) -> None:
    store.syncs.failing = frozenset({BODIES})
    assert all(isinstance(one, StoreError) for one in store.create(pair_of("a"), pair_of("b")))
    assert [store.body("first/a"), store.body("second/a")] == [None, None]
    assert store.syncs.calls == 1


def test_nothing_follows_a_name_that_may_not_be_durable(store: Store) -> None:
    """A crash could lose the first object and keep the second."""
    store.syncs.failing = frozenset({FIRST_NAMES})
    found = store.create_one(pair_of("a"))
    assert isinstance(found.first, Unknown)
    assert found.second is None
    assert store.body("second/a") is None


def test_a_second_name_that_may_not_be_durable_is_unknown(store: Store) -> None:
    store.syncs.failing = frozenset({SECOND_NAMES})
    found = store.create_one(pair_of("a"))
    assert isinstance(found.first, Applied)
    assert isinstance(found.second, Unknown)


def test_nothing_follows_an_object_that_was_named_late(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timestamp is another one than that for which the second object was made."""
    call = os.link

    def slow(*args: Any, **kwargs: Any) -> None:
        store.clock.pass_s(BOUND_S + 1)
        call(*args, **kwargs)

    begun_ns = store.stamps.now_ns()
    with monkeypatch.context() as inner:
        inner.setattr(os, "link", slow)
        found = store.create_one(pair_of("a"))
    assert isinstance(found.first, Applied)
    assert found.first.date_ns > begun_ns + BOUND_S * 10**9
    assert found.second is None
    assert store.body("second/a") is None


def test_a_second_object_that_is_named_late_has_a_new_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = os.link

    def slow(source: str, path: str) -> None:
        if "/second/" in path:
            store.clock.pass_s(BOUND_S + 1)
        call(source, path)

    with monkeypatch.context() as inner:
        inner.setattr(os, "link", slow)
        found = store.create_one(pair_of("a"))
    assert isinstance(found.first, Applied)
    assert isinstance(found.second, Applied)
    assert found.second.date_ns > found.first.date_ns + BOUND_S * 10**9


@pytest.mark.parametrize("refused", ["first/a", "second/a"])
def test_a_full_disk_refuses_one_of_both(
    refused: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first object without the second, or none of them."""
    link = os.link

    def full(source: str, path: str) -> None:
        if path.endswith(refused):
            raise OSError(28, "No space left on device")
        link(source, path)

    monkeypatch.setattr(os, "link", full)
    [found] = store.create(pair_of("a"))
    if refused == "first/a":
        assert isinstance(found, StoreError)
    else:
        assert isinstance(found, PairOutcome)
        assert isinstance(found.first, Applied)
        assert found.second is None
    assert store.body("second/a") is None


def test_a_follow_that_fails_does_not_affect_others(store: Store) -> None:
    """The caller of this pair creates the second object itself, and sees the fault then."""

    def broken(_: Applied) -> NewObject:
        raise ValueError("a fault")

    good, bad = store.create(pair_of("a"), NewPair(first=new("first/b"), follow=broken))
    assert isinstance(good, PairOutcome)
    assert isinstance(good.second, Applied)
    assert isinstance(bad, PairOutcome)
    assert isinstance(bad.first, Applied)
    assert bad.second is None
