"""Clients that follow files: Filebeat, Fluent Bit, Promtail, rsyslog, syslog-ng and Telegraf."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.client_programs import (
    BIN,
    DEBIAN,
    SAMPLE,
    SEND,
    ClientCase,
    Program,
    debian_environment,
    environment,
    line_of,
    program,
)
from support.door_fleet import Fleet


@dataclass
class Follower:
    """A client that follows a file."""

    program: Program
    path: Path
    form: str = "{line}"

    def feed(self, numbers: range) -> None:
        lines = (self.form.format(line=line_of(n), number=n, ns=time.time_ns()) for n in numbers)
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def stop(self) -> None:
        self.program.stop()

    def errors(self) -> list[str]:
        return self.program.errors()


@contextmanager
def filebeat(served: Fleet, folder: Path) -> Iterator[Follower]:
    path = folder / "shop.log"
    path.touch()
    config = folder / "filebeat.yml"
    config.write_bytes((SEND / "filebeat.yml").read_bytes())
    config.chmod(0o600)  # Filebeat refuses a configuration that others may write
    command = [BIN / "filebeat", "-e", "-c", config, "--path.home", folder / "home"]
    faults = r"Dropping event|Cannot index event|dropped\":[1-9]|panic"
    with program(
        command,
        folder / "client.log",
        environment(served, LOG_FILES=str(path)),
        faults=faults,
    ) as started:
        yield Follower(started, path)


@contextmanager
def fluent_bit(served: Fleet, folder: Path, config: str = "fluent-bit.conf") -> Iterator[Follower]:
    """Run it on the files of a folder; run again there, it continues."""
    path, storage = folder / "shop.log", folder / "storage"
    path.touch()
    storage.mkdir(exist_ok=True)
    host, _, port = served.address.partition(":")
    env = environment(
        served,
        LOG_FILES=str(path),
        STORAGE=str(storage),
        FORWARD_HOST=host,
        FORWARD_PORT=port,
        SHARED_KEY=served.shared_key,
        HOSTNAME="shop-1",
    )
    faults = r"cannot be retried|no retries left"
    command = [BIN / "fluent-bit", "-c", SEND / config]
    with program(command, folder / "client.log", env, faults=faults) as started:
        yield Follower(started, path)


@contextmanager
def rsyslog(served: Fleet, folder: Path) -> Iterator[Follower]:
    path, work = folder / "shop.log", folder / "rsyslog"
    path.touch()
    work.mkdir()
    modules = DEBIAN / "usr/lib/x86_64-linux-gnu/rsyslog"
    config = folder / "rsyslog.conf"
    config.write_bytes((SEND / "rsyslog.conf").read_bytes())
    env = environment(served, LOG_FILES=str(path), RSYSLOG_WORK=str(work)) | debian_environment()
    command = [DEBIAN / "usr/sbin/rsyslogd", "-n", "-iNONE", "-M", modules, "-f", config]
    faults = r"bulkmode insert does not return array|message lost|discard"
    with program(command, folder / "client.log", env, faults=faults) as started:
        yield Follower(started, path)


@contextmanager
def syslog_ng(served: Fleet, folder: Path) -> Iterator[Follower]:
    path, state = folder / "shop.log", folder / "syslog-ng"
    path.touch()
    state.mkdir()
    env = environment(served, LOG_FILES=str(path)) | debian_environment()
    command = [
        *(DEBIAN / "usr/sbin/syslog-ng", "--foreground", "--stderr", "--no-caps"),
        *("-f", SEND / "syslog-ng.conf", "--module-path", DEBIAN / "usr/lib/syslog-ng/3.38"),
        *("-R", state / "persist", "-p", state / "pid", "-c", state / "control"),
    ]
    faults = r"[Mm]essages? dropped|Target server .* down, drop|Error parsing"
    with program(command, folder / "client.log", env, faults=faults) as started:
        yield Follower(started, path)


@contextmanager
def telegraf(served: Fleet, folder: Path) -> Iterator[Follower]:
    path = folder / "shop.influx"
    path.touch()
    config = folder / "input.conf"
    config.write_text(
        f'[[inputs.tail]]\nfiles = ["{path}"]\ninitial_read_offset = "beginning"\n'
        'path_tag = ""\ndata_format = "influx"\nwatch_method = "poll"\n'
        "max_undelivered_lines = 100000\n"
    )
    command = [BIN / "telegraf", "--config", SEND / "telegraf.conf", "--config", config]
    with program(
        command, folder / "client.log", environment(served), faults=r"dropped|overflow"
    ) as started:
        yield Follower(started, path, "shop,record=record-{number:08d} value=1 {ns}")


@contextmanager
def promtail(served: Fleet, folder: Path) -> Iterator[Follower]:
    path = folder / "shop.log"
    path.touch()
    command = [BIN / "promtail", "-config.expand-env=true", "-config.file", SEND / "promtail.yaml"]
    env = environment(served, LOG_FILES=str(path), POSITIONS=str(folder / "positions.yaml"))
    with program(command, folder / "client.log", env, faults=r"final error|dropp") as started:
        yield Follower(started, path)


FOLLOWERS = (
    ClientCase(name="filebeat", door="elasticsearch", start=filebeat),
    ClientCase(name="fluent-bit", door="json", start=fluent_bit),
    ClientCase(name="promtail", door="loki", start=promtail),
    ClientCase(name="rsyslog", door="elasticsearch", start=rsyslog, keeps_identity=False),
    ClientCase(name="syslog-ng", door="json", start=syslog_ng, keeps_identity=False),
    ClientCase(
        name="telegraf", door="prometheus", start=telegraf, keeps_identity=False, search=SAMPLE
    ),
)
