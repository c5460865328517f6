"""`sluice up`: which services run, when one is started again, and their common log."""

import asyncio
import errno
import json
import os
import re
import socket
from pathlib import Path

import pytest
from support.commands import make_java_home

from sluice_cli.up import service_log, supervisor
from sluice_cli.up.command import check_ports, choose_addresses, select_services
from sluice_cli.up.service_log import ServiceLog, warning_of
from sluice_cli.up.services import DOOR_PRINCIPAL, HOST, SERVICES, LocalService
from sluice_cli.up.supervisor import (
    PAUSE_S_MAX,
    STABLE_S,
    ServicePhase,
    SupervisedRun,
    after_exit,
    after_ready,
    after_start,
)
from sluice_protocol.distribution import install_command
from sluice_protocol.errors import BadUsage
from sluice_protocol.system_clock import SystemClock
from sluice_protocol.units import NS_PER_S


def ended(run: SupervisedRun, *, ready_s: float, code: int = 1) -> SupervisedRun:
    started = after_ready(after_start(run), 0)
    return after_exit(started, code, int(ready_s * NS_PER_S))


def test_pauses_double_up_to_a_maximum() -> None:
    run, pauses = SupervisedRun(), []
    for _ in range(10):
        run = ended(run, ready_s=1)
        pauses.append(run.pause_s)
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == PAUSE_S_MAX


def test_a_stable_process_resets_the_pause() -> None:
    run = SupervisedRun()
    for _ in range(5):
        run = ended(run, ready_s=0)
    assert ended(run, ready_s=STABLE_S).pause_s == 0.5


def test_rejected_settings_are_not_tried_again() -> None:
    assert after_exit(after_start(SupervisedRun()), 2, 0).phase is ServicePhase.REFUSED


def test_a_service_that_was_ready_is_started_again_whatever_its_exit_code() -> None:
    assert ended(SupervisedRun(), ready_s=1, code=2).phase is ServicePhase.WAITING


def test_the_log_has_a_maximum_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_log, "FILE_BYTES_MAX", 1000)
    log = ServiceLog(tmp_path / "up.log", lambda _: None, verbose=False)
    for number in range(500):
        log.add("gateway", b"line %d" % number)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert [one.name for one in files] == ["up.log", "up.log.1"]
    assert all(one.stat().st_size <= 1020 for one in files)
    assert log.last_line("gateway") == "line 499"


def test_warnings_are_shown_and_other_lines_are_not(tmp_path: Path) -> None:
    shown: list[str] = []
    log = ServiceLog(tmp_path / "up.log", shown.append, verbose=False)
    for level in ("info", "warning", "error"):
        log.add("gateway", json.dumps({"event": "one", "level": level, "key": 1}).encode())
    log.hide()
    log.add("gateway", b'{"event": "late", "level": "warning"}')
    log.close()
    assert shown == ["gateway: warning one key=1", "gateway: error one key=1"]


@pytest.mark.parametrize("text", ["plain", "{broken", '{"event": "x"}'])
def test_a_line_that_is_no_warning_is_not_shown(text: str) -> None:
    assert warning_of(text) is None


def test_free_ports_are_selected_and_taken_ones_refused() -> None:
    chosen = {name: 0 for one in SERVICES for name in one.ports}
    addresses = choose_addresses(SERVICES, chosen, HOST)
    assert len(set(addresses.values())) == len(chosen)
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadUsage, match="--port gateway=PORT"):
            choose_addresses(SERVICES, {**chosen, "gateway": port}, HOST)


def test_one_port_for_two_services_is_refused() -> None:
    with pytest.raises(BadUsage, match=r"two services with one port: .* for gateway or query"):
        check_ports(SERVICES, {"query": 9000, "gateway": 9000})
    with pytest.raises(BadUsage, match="for gateway or console, port=`8080`"):
        check_ports(SERVICES, {"console": 8080})


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(BadUsage, match="a port is a number from 1 to 65535"):
        check_ports(SERVICES, {"gateway": 70000})


def test_a_required_service_without_its_package_is_refused_with_the_extra() -> None:
    service = LocalService(
        name="one", words=(), ports={"one": 1}, ready_path="/", modules=("no_such_package",)
    )
    with pytest.raises(BadUsage, match=re.escape(install_command("up"))):
        select_services((service,), ())


def test_every_place_of_a_command_line_is_known() -> None:
    places = {"store": "file:///s", "home": "/h"}
    ports = {name: "127.0.0.1:1" for one in SERVICES for name in one.ports}
    for service in SERVICES:
        words = service.command({**places, **ports})
        assert not any("{" in word for word in words)


def test_a_service_names_only_peers_that_run() -> None:
    (query,) = (one for one in SERVICES if one.name == "query")
    places = {"store": "file:///s", "query": "127.0.0.1:1"}
    assert "--reconciler" not in query.command(places)
    words = query.command({**places, "reconciler": "127.0.0.1:2"})
    assert words[-2:] == ("--reconciler", "http://127.0.0.1:2")


def test_a_program_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(supervisor.sys, "executable", str(tmp_path / "missing"))

    async def run() -> SupervisedRun:
        ended = asyncio.Event()

        def show(line: str) -> None:
            shown.append(line)
            if "started again" in line:
                ended.set()

        log = ServiceLog(tmp_path / "up.log", shown.append, verbose=False)
        service = LocalService(name="one", words=("x",), ports={"one": 1}, ready_path="/")
        one = supervisor.Supervisor(
            services=(service,),
            places={"one": "127.0.0.1:1"},
            environment={},
            log=log,
            show=show,
            clock=SystemClock(),
        )
        one.start()
        await ended.wait()
        await one.stop()
        log.close()
        return one.runs["one"]

    assert asyncio.run(run()).phase is ServicePhase.WAITING
    assert shown[0] == "one cannot be started: No such file or directory"
    assert "it is started again in 0.5 s" in shown[1]


def test_a_port_of_a_service_that_does_not_run_is_no_mistake() -> None:
    """Without Java there is no maintenance, and its port is named by the same command."""
    maintain = next(one for one in SERVICES if one.name == "maintain")
    others = [one for one in SERVICES if one is not maintain]
    ports = {**{name: 0 for one in others for name in one.ports}, "maintain": 1}
    check_ports(SERVICES, ports)
    found = choose_addresses(others, ports, HOST)
    assert "maintain" not in found


def test_a_client_of_fluents_protocol_needs_no_key_on_loopback() -> None:
    """It reports success before any handshake, so its records would be lost silently."""
    words = next(one for one in SERVICES if one.name == "gateway").words
    assert words[words.index("--forward-principal") + 1] == DOOR_PRINCIPAL
    assert HOST == "127.0.0.1"


@pytest.mark.parametrize(
    ("version", "problem"),
    [(None, "no Java: install Java 17"), ("11.0.2", "Java is too old: install Java 17")],
)
def test_without_java_17_maintenance_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, problem: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", make_java_home(tmp_path, version))
    selected, (note,) = select_services(SERVICES, ())
    assert "records stay searchable but do not reach the Delta tables" in note
    assert problem in note
    assert {one.name for one in SERVICES} - {one.name for one in selected} == {"maintain"}


def test_with_java_17_every_service_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", make_java_home(tmp_path, "17.0.15"))
    assert select_services(SERVICES, ()) == (SERVICES, ())


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
