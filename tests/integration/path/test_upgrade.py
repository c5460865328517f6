"""Old and new processes on one store at the same time, in both directions of an upgrade."""

import subprocess
from pathlib import Path

import pytest
from support.versions import (
    NEW,
    Version,
    init_store,
    send_line,
    start_services,
    stop_services,
    wait_found,
    wait_ready,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


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
        # Roll back: the new processes stop, and the old ones continue with what they left.
        stop_services(running[2:])
        send_line(NEW, tmp_path, old_gateway, "line-after-rollback-end")
        wait_found(old, tmp_path, lines | {"line-after-rollback-end"})
        assert old_reconciler in NEW.run(tmp_path, "queue", "status")
    finally:
        for process in running:
            process.kill()
            process.wait()
    for version in (old, NEW):
        assert "0 differences" in version.run(tmp_path, "rebuild", "--verify")
