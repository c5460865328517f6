"""The common log of `sluice up` survives a full disk, a rename and a removal."""

import errno
import os
from pathlib import Path

import pytest

from sluice_cli.up import service_log
from sluice_cli.up.service_log import ServiceLog


def test_a_renamed_log_is_replaced_by_a_new_file(tmp_path: Path) -> None:
    path, shown = tmp_path / "up.log", list[str]()
    log = ServiceLog(path, shown.append, verbose=False)
    log.add("gateway", b"one")
    path.rename(tmp_path / "old.log")
    log.add("gateway", b"two")
    path.unlink()
    log.add("query", b"three")
    log.close()
    assert (tmp_path / "old.log").read_text() == "gateway one\n"
    assert path.read_text() == "query three\n"
    assert shown == []


def test_a_full_disk_costs_the_lines_of_that_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is shown once, the lost lines are counted, and later lines are written."""
    path, shown = tmp_path / "up.log", list[str]()
    log = ServiceLog(path, shown.append, verbose=False)
    log.add("gateway", b"one")
    log.close()
    with monkeypatch.context() as full:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(Path, "open", refuse)
        for line in (b"two", b'{"level": "error", "event": "three"}'):
            log.add("gateway", line)
    log.add("gateway", b"four")
    log.close()
    assert path.read_text() == (
        "gateway one\nup 2 lines could not be written to this log\ngateway four\n"
    )
    assert shown == [
        (
            "cannot write the log: No space left on device; lines are lost until it can be written"
            f" again, log={path}"
        ),
        "gateway: error three",
    ]
    assert log.last_line("gateway") == "four"


def test_a_folder_that_was_moved_away_and_back(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    log = ServiceLog(folder / "up.log", lambda _: None, verbose=False)
    folder.rename(tmp_path / "away")
    log.add("gateway", b"one")
    (tmp_path / "away").rename(folder)
    log.add("gateway", b"two")
    log.close()
    assert (folder / "up.log").read_text().endswith("gateway two\n")


def test_a_full_file_replaces_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_log, "FILE_BYTES_MAX", 20)
    path = tmp_path / "up.log"
    log = ServiceLog(path, lambda _: None, verbose=False)
    for line in (b"a" * 20, b"b"):
        log.add("gateway", line)
    log.close()
    assert path.read_text() == "gateway b\n"
    assert (tmp_path / "up.log.1").read_text() == f"gateway {'a' * 20}\n"
