"""Old and new processes on one store at the same time, in both directions of an upgrade."""

import subprocess
from pathlib import Path

import pytest
from support.versions import (
    NEW,
    Version,
    forward_words,
    found_lines,
    init_store,
    send_line,
    start_services,
    stop_services,
    wait_for_value,
    wait_found,
    wait_ready,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def send_version_2(folder: Path, old_gateway: str, new_gateway: str) -> set[str]:
    """Send lines in frames of version 2, first to the old gateway alone; return them.

    The agent keeps the line that the old gateway does not read, and parks nothing.
    """
    refused, line = "line-refused-by-old-end", "line-of-version-two-end"
    options = ("--frame-version", "2", "--spool", str(folder / "spool"))
    old_only = forward_words(old_gateway)
    done = NEW.call(folder, *old_only, *options, "--give-up-s", "3", stdin=refused + "\n")
    assert done.returncode == 3, done.stderr
    assert "unsupported_version" in done.stderr
    kept = [one.parent.name for one in (folder / "spool").rglob("*.batch")]
    assert kept == ["ready"]
    NEW.run(folder, *forward_words(old_gateway, new_gateway), *options, stdin=line + "\n")
    assert not list((folder / "spool").rglob("*.batch"))
    return {refused, line}


def test_old_and_new_processes_work_on_one_store(tmp_path: Path, old: Version) -> None:
    init_store(old, tmp_path)
    running: list[subprocess.Popen[bytes]] = []
    try:
        old_gateway, old_reconciler, started = start_services(old, tmp_path)
        running += started
        new_gateway, new_reconciler, started = start_services(NEW, tmp_path)
        running += started
        addresses = [old_gateway, old_reconciler, new_gateway, new_reconciler]
        wait_ready(addresses, running, tmp_path)
        lines = set()
        for sender in (old, NEW):
            for name, gateway in (("old", old_gateway), ("new", new_gateway)):
                line = f"line-{sender.name}-to-{name}-end"
                send_line(sender, tmp_path, gateway, line)
                lines.add(line)
        for reader in (old, NEW):
            wait_found(reader, tmp_path, lines)
        # Both read the claims of the other, and name the owner of each lane where they can.
        assert "appended" in old.run(tmp_path, "queue", "status")
        shown = NEW.run(tmp_path, "queue", "status")
        assert old_reconciler in shown or new_reconciler in shown
        newer = send_version_2(tmp_path, old_gateway, new_gateway)
        wait_found(NEW, tmp_path, lines | newer)
        # The old query returns what it reads, and reports what it does not.
        shown = old.run(tmp_path, "query", "--from", "1h", "-q", "line-", "--json")
        assert shown.count("field=`frame_version`, found=`2`") == len(newer)
        assert found_lines(old, tmp_path) == sorted(lines)
        # Roll back: the new processes stop, and the old ones continue with what they left.
        stop_services(running[2:])
        send_line(NEW, tmp_path, old_gateway, "line-after-rollback-end")
        wait_found(old, tmp_path, lines | {"line-after-rollback-end"})
        wait_for_value(
            lambda: old_reconciler in NEW.run(tmp_path, "queue", "status"), True, "a lane's owner"
        )
        # A query finds a batch by its journal before the reconciler has indexed it.
        wait_for_value(
            lambda: old.call(tmp_path, "rebuild", "--verify").returncode, 0, "the exit code"
        )
    finally:
        for process in running:
            process.kill()
            process.wait()
    for version in (old, NEW):
        assert "0 differences" in version.run(tmp_path, "rebuild", "--verify")
