"""A timestamp of the directory store is never much older than the visibility of its object."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.gc_world import MovedClock

from sluice_protocol.authority import MARGIN_S_DEFAULT, SKEW_S_MAX, UPLOAD_TIME_S_MAX
from sluice_protocol.authority import VISIBILITY_S_MAX as BOUND_S
from sluice_protocol.keys import digest_of
from sluice_protocol.outcomes import Applied, NotFound, ObjectInfo
from sluice_protocol.system_clock import SystemIds
from sluice_protocol.units import ETag, ObjectKey, ObjectVersion
from sluice_store.local.durability import GroupSync, LogicalClock
from sluice_store.local.files import LocalFiles
from sluice_store.local.layout import MARK, Layout, walk_incarnations, walk_objects

KEY = ObjectKey("a/key")
SMALLEST_MARGIN_S = 2 * (UPLOAD_TIME_S_MAX + SKEW_S_MAX + 1)


class Killed(BaseException):
    """The writer dies; nothing of it runs any more."""


class Folder:
    """One directory store under a clock that the test moves."""

    def __init__(self, root: Path) -> None:
        self.clock = MovedClock()
        self.layout = Layout(root=root)
        for folder in (self.layout.temporary, self.layout.locks, self.layout.generations):
            folder.mkdir(parents=True)
        self.stamps = LogicalClock(self.layout.clock, self.clock)
        self.files = LocalFiles(self.layout, self.stamps, GroupSync(), SystemIds())

    @contextmanager
    def held(self, patch: pytest.MonkeyPatch, name: str, seconds: float) -> Iterator[None]:
        """Let time pass before each call of this name takes effect."""
        call = getattr(os, name)

        def slow(*args: object, **kwargs: object) -> object:
            self.clock.pass_s(seconds)
            return call(*args, **kwargs)

        with patch.context() as inner:
            inner.setattr(os, name, slow)
            yield

    def head(self) -> ObjectInfo:
        found = self.files.head(KEY)
        assert isinstance(found, ObjectInfo)
        return found

    def dead_writer(self, patch: pytest.MonkeyPatch, seconds: float) -> int:
        """Leave an object whose writer died after naming it, and return its timestamp."""

        def die(*_: object) -> None:
            raise Killed

        with patch.context() as inner:
            inner.setattr("sluice_store.local.files.Visibility.settle_new", die)
            with pytest.raises(Killed):
                self.files.create(KEY, b"body", None)
        self.clock.pass_s(seconds)
        found = self.layout.object_of(KEY).stat()
        assert found.st_mode & MARK
        return found.st_mtime_ns


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.stamps.close()


def test_the_bound_fits_into_every_margin() -> None:
    """A bound that a margin does not cover would prove nothing."""
    assert BOUND_S + SKEW_S_MAX + 1 < SMALLEST_MARGIN_S // 2 <= MARGIN_S_DEFAULT // 2


@pytest.mark.parametrize("name", ["utime", "link"])
def test_a_stalled_create_reports_the_time_of_its_visibility(
    name: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder.held(monkeypatch, name, BOUND_S + 1):
        before_ns = folder.stamps.now_ns()
        written = folder.files.create(KEY, b"body", None)
    assert written.date_ns > before_ns + BOUND_S * 10**9
    assert folder.head().last_modified_ns == written.date_ns
    assert folder.head().etag == written.etag
    assert folder.head().sha256 == digest_of(b"body")


def test_a_stalled_replace_reports_the_time_of_its_visibility(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename of a replaced object can stall as well."""
    first = folder.files.create(KEY, b"one", None)
    with folder.held(monkeypatch, "replace", BOUND_S + 1):
        second = folder.files.replace(KEY, b"two", first.etag)
    assert second.date_ns - first.date_ns > BOUND_S * 10**9
    assert isinstance(folder.files.replace(KEY, b"three", second.etag), Applied)


def test_a_write_in_time_keeps_its_timestamp(folder: Folder) -> None:
    """The usual write is not dated twice, and its mark is gone."""
    written = folder.files.create(KEY, b"body", None)
    found = folder.layout.object_of(KEY).stat()
    assert (written.etag, stat.S_IMODE(found.st_mode)) == (str(found.st_mtime_ns), 0o644)


@pytest.mark.parametrize("verb", ["get", "head", "list", "list_incarnations"])
def test_every_reader_dates_an_object_of_a_dead_writer(
    verb: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reader relies on a timestamp that its writer did not check."""
    old = folder.dead_writer(monkeypatch, BOUND_S + 1)
    find, root = folder.files.visible.find, folder.layout
    if verb == "get":
        read = folder.files.get(KEY, 0, None)
        seen_ns = int(read.info.last_modified_ns)
    elif verb == "head":
        seen_ns = int(folder.head().last_modified_ns)
    else:
        walk = walk_objects if verb == "list" else walk_incarnations
        [listed] = walk(root, find, "", "", None)
        seen_ns = int(listed.last_modified_ns)
    assert seen_ns - old > BOUND_S * 10**9
    folder.clock.pass_s(1000)
    assert folder.head().last_modified_ns == seen_ns, "a reported timestamp never changes"


def test_an_object_of_a_dead_writer_keeps_a_young_timestamp(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the bound the timestamp is right, and it is fixed by the first reader."""
    old = folder.dead_writer(monkeypatch, BOUND_S - 1)
    assert folder.head().last_modified_ns == old
    folder.clock.pass_s(1000)
    assert folder.head().last_modified_ns == old


def test_an_unchecked_version_is_not_deleted(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion that rests on the old timestamp meets another version."""
    old = folder.dead_writer(monkeypatch, BOUND_S + 1)
    folder.files.delete(KEY, ObjectVersion(str(old)))
    now = folder.head()
    assert now.last_modified_ns > old
    folder.files.delete(KEY, now.incarnation or ObjectVersion(""))
    assert isinstance(folder.files.head(KEY), NotFound)


def test_an_overwrite_keeps_the_order_of_versions(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unchecked state is dated before it becomes noncurrent."""
    folder.dead_writer(monkeypatch, BOUND_S + 1)
    folder.files.overwrite(KEY, b"new", None)
    versions = list(walk_incarnations(folder.layout, folder.files.visible.find, "", "", None))
    stamps = [one.last_modified_ns for one in versions]
    assert stamps == sorted(stamps, reverse=True)
    for one in versions:
        assert isinstance(folder.files.head_incarnation(KEY, one.incarnation), ObjectInfo)
    assert isinstance(folder.files.replace(KEY, b"x", ETag(str(stamps[0]))), Applied)


def test_a_process_that_cannot_write_reports_its_own_time(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot fix the timestamp, so it reports a time at which the object is visible."""
    old = folder.dead_writer(monkeypatch, BOUND_S + 1)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "not permitted")

    with monkeypatch.context() as inner:
        inner.setattr(os, "utime", refuse)
        assert folder.head().last_modified_ns - old > BOUND_S * 10**9
