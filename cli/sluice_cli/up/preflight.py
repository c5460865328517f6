"""Checks before the start, so that a missing requirement is one line with its remedy."""

import errno
import importlib.util
import os
import shutil
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from sluice_cli.shell.output import format_size
from sluice_cli.up.services import LocalService
from sluice_protocol.distribution import describe_missing_package
from sluice_protocol.errors import BadUsage
from sluice_spark.jvm import describe_missing_java

_PORT_MAX = 65_535


def missing_requirement(service: LocalService) -> str | None:
    """Return the missing requirement of a service and how to get it, or None."""
    for module in service.modules:
        if importlib.util.find_spec(module) is None:
            return describe_missing_package("up", module)
    return describe_missing_java() if service.needs_java else None


def select_services(
    services: Iterable[LocalService], without: Iterable[str]
) -> tuple[tuple[LocalService, ...], tuple[str, ...]]:
    """Return the services to run, and a note on each one that cannot run here."""
    offered = tuple(services)
    left_out = set(without)
    unknown = sorted(left_out - {one.name for one in offered})
    if unknown:
        names = ", ".join(one.name for one in offered)
        raise BadUsage(f"no such service: use one of {names}, without=`{unknown[0]}`")
    selected, notes = [], []
    for service in offered:
        if service.name in left_out:
            continue
        missing = missing_requirement(service)
        if missing is None:
            selected.append(service)
        elif service.optional:
            notes.append(f"{service.name} is off, {service.without}: {missing}")
        else:
            raise BadUsage(f"cannot start {service.name}: {missing}")
    return tuple(selected), tuple(notes)


def check_ports(services: Iterable[LocalService], chosen: Mapping[str, int]) -> None:
    """Check ports that were chosen by name, against those of every service.

    The port of a service that does not run here has no effect.
    """
    wanted = {name: port for one in services for name, port in one.ports.items()}
    unknown = sorted(set(chosen) - set(wanted))
    if unknown:
        raise BadUsage(f"no such port: use one of {', '.join(sorted(wanted))}, port=`{unknown[0]}`")
    names: dict[int, str] = {}
    for name, port in {**wanted, **chosen}.items():
        if port > _PORT_MAX:
            raise BadUsage(
                f"no such port: a port is a number from 1 to {_PORT_MAX}, or 0 for a free one,"
                f" port=`{name}={port}`"
            )
        other = names.setdefault(port, name)
        if port and other != name:
            raise BadUsage(
                f"two services with one port: choose another number for {other} or {name},"
                f" port=`{port}`"
            )


def choose_addresses(
    services: Iterable[LocalService], chosen: Mapping[str, int], host: str
) -> dict[str, str]:
    """Return the free address of each port of the services; port 0 selects a free one.

    `chosen` ports, which `check_ports` accepts, replace the defaults.
    """
    wanted = {name: port for one in services for name, port in one.ports.items()}
    reserved: dict[str, socket.socket] = {}
    try:
        for name, default in wanted.items():
            reserved[name] = _reserve(name, host, chosen.get(name, default))
        return {name: f"{host}:{one.getsockname()[1]}" for name, one in reserved.items()}
    finally:
        for one in reserved.values():
            one.close()


def _reserve(name: str, host: str, port: int) -> socket.socket:
    reserved = socket.socket()
    try:
        # Without SO_REUSEPORT: gateways share ports, and one of another deployment may listen.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
        reserved.listen(1)
    except OSError as error:
        reserved.close()
        if error.errno == errno.EACCES:
            raise BadUsage(
                "cannot listen: this user may not use the port; pass a number above 1023 as"
                f" `--port {name}=PORT`, listen=`{host}:{port}`"
            ) from error
        raise BadUsage(
            f"cannot listen: {error.strerror}; stop the program that uses the port, or pass"
            f" `--port {name}=PORT` (0 selects a free one), listen=`{host}:{port}`"
        ) from error
    return reserved


def check_disk(folder: Path, free_bytes_min: int) -> None:
    """Refuse a folder on a disk without `free_bytes_min`."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < free_bytes_min:
        raise BadUsage(
            "disk nearly full: free some space, or pass a smaller `--free-bytes-min`,"
            f" free=`{format_size(free_bytes)}`, minimum=`{format_size(free_bytes_min)}`,"
            f" path=`{folder}`"
        )


def check_writable(folder: Path, option: str) -> None:
    """Create a folder if it does not exist, and check that this user can write to it.

    The error names the option.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except FileExistsError as error:
        raise BadUsage(
            f"a file is where a folder is required: pass another `{option}`, path=`{folder}`"
        ) from error
    except OSError as error:
        raise BadUsage(
            f"cannot write: {error.strerror}; change to a folder that you own, or pass `{option}`,"
            f" path=`{folder}`"
        ) from error
