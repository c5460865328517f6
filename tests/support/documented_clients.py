"""What runs each block of the pages in `docs/send`, or the reason why no test does.

Also here: the installation of the README: the built wheel, in an empty environment and an empty
folder.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest
from support.client_programs import BIN, DEBIAN, JAVA, LIBRARIES, NODE, PYTHON, SEND
from support.documented_blocks import READY_S, Block, PageRun
from support.gateway_tls import SERVER, TestAuthority
from support.local_deployment import (
    PORTS,
    START_S,
    LocalDeployment,
    clean_environment,
    stop_deployment,
)
from support.store_versitygw import free_port, wait_for_port

from sluice_protocol.distribution import DISTRIBUTION

LINE = "documented record"
RSYSLOG = f'{DEBIAN}/usr/sbin/rsyslogd -n -iNONE -M {DEBIAN}/usr/lib/x86_64-linux-gnu/rsyslog "$@"'
SYSLOG_NG = (
    f"{DEBIAN}/usr/sbin/syslog-ng --stderr --no-caps --module-path {DEBIAN}/usr/lib/syslog-ng/3.38"
    ' -R ./persist -p ./pid -c ./control "$@"'
)
LINKED = ":".join(str(DEBIAN / one) for one in LIBRARIES)


@dataclass(frozen=True)
class NotRun:
    """A block that no test runs.

    Attributes:
        reason: Why not, for the reader of the skipped test.
    """

    reason: str


BlockRunner = Callable[[PageRun, Block], None] | NotRun


def open_doors(run: PageRun, block: Block) -> None:
    """Create the token and start the gateway, as the block does."""
    run.replaced |= {"0.0.0.0:": "127.0.0.1:", "24224": str(free_port())}
    run.wait_ready(run.start(run.text(block)))
    assert run.token, "the block prints no token"
    run.more["SLUICE_URL"] = f"http://{run.address}"  # as the line that `sluice up` prints


def serves_urls(run: PageRun, block: Block) -> None:
    """Check that the open doors serve each URL of a configuration whose client is not here."""
    paths = re.findall(r"https?://[\w.:]+(/[\w/?=.&]+)", run.text(block))
    assert paths, block.place
    for path in paths:
        assert run.served(path), f"{path} of {block.place}"


def needs(path: Path) -> Path:
    """Return the path of a client, or skip the test if it is not unpacked."""
    if not path.exists():
        pytest.skip(f"{path.name} is missing: run `deploy/clients/build.sh`")
    return path


def wrap(run: PageRun, name: str, commands: str) -> None:
    """Put a program into `PATH` that runs these commands."""
    script = run.programs / name
    script.write_text(f"#!/bin/sh\n{commands}\n")
    script.chmod(0o755)


def copy(run: PageRun, name: str) -> None:
    """Copy a file that a page links; Filebeat refuses one that others may write."""
    shutil.copy(SEND / name, run.folder / name)
    (run.folder / name).chmod(0o600)


def unpacked(run: PageRun, name: str, commands: str) -> None:
    """Put a program of an unpacked Debian package into `PATH`."""
    needs(DEBIAN / "complete")
    wrap(run, name, f"export LD_LIBRARY_PATH={LINKED}\nexec {commands}")


def log_file(run: PageRun) -> Path:
    """Return the log that the clients of the pages follow."""
    path = run.folder / "var" / "log" / "shop.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def collector(run: PageRun, block: Block) -> None:
    copy(run, "opentelemetry-collector.yaml")
    (run.programs / "otelcol").symlink_to(needs(BIN / "otelcol"))
    port = free_port()
    run.replaced["127.0.0.1:4318"] = f"127.0.0.1:{port}"
    run.start(run.text(block))
    wait_for_port(port, run.started[-1])
    record = {"timeUnixNano": str(time.time_ns()), "body": {"stringValue": LINE}}
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    run.shell(
        f"curl -sf -H 'Content-Type: application/json' http://127.0.0.1:{port}/v1/logs -d '{body}'"
    )
    run.wait_found(LINE)


def filebeat(run: PageRun, block: Block) -> None:
    copy(run, "filebeat.yml")
    wrap(run, "filebeat", f'exec {needs(BIN / "filebeat")} --path.home {run.folder} "$@"')
    path = log_file(run)
    run.start(run.text(block))
    run.wait_found(LINE, "-q", LINE, f'{{log_file_path="{path}"}}', feed=path)


def telegraf(run: PageRun, block: Block) -> None:
    copy(run, "telegraf.conf")
    (run.programs / "telegraf").symlink_to(needs(BIN / "telegraf"))
    path = log_file(run)
    (run.folder / "inputs.conf").write_text(
        f'[[inputs.tail]]\nfiles = ["{path}"]\ndata_format = "influx"\nwatch_method = "poll"\n'
    )
    run.start(run.text(block))
    run.wait_found(
        "shop_value", "-q", "shop_value", "--kind", "metrics", feed=path, line="shop value=1"
    )


def fluent_bit(run: PageRun, block: Block) -> None:
    forward = "forward.conf" in block.text
    copy(run, "fluent-bit-forward.conf" if forward else "fluent-bit.conf")
    (run.programs / "fluent-bit").symlink_to(needs(BIN / "fluent-bit"))
    run.replaced["SLUICE_PORT=8080"] = f"SLUICE_PORT={run.address.rpartition(':')[2]}"
    entry = (run.folder / "principals.toml").read_text()
    run.replaced["THE_SHARED_KEY"] = entry.partition('shared_key = "')[2].partition('"')[0]
    (run.folder / "var" / "lib" / "fluent-bit").mkdir(parents=True)
    path = log_file(run)
    run.start(run.text(block))
    run.wait_found(LINE, feed=path)


def rsyslog(run: PageRun, block: Block) -> None:
    copy(run, "rsyslog.conf")
    unpacked(run, "rsyslogd", RSYSLOG)
    run.replaced["SLUICE_PORT=8080"] = f"SLUICE_PORT={run.address.rpartition(':')[2]}"
    (run.folder / "var" / "spool" / "rsyslog").mkdir(parents=True)
    path = log_file(run)
    run.start(run.text(block))
    run.wait_found(LINE, "-q", LINE, '{tag="shop:"}', feed=path)


def syslog_ng(run: PageRun, block: Block) -> None:
    copy(run, "syslog-ng.conf")
    unpacked(run, "syslog-ng", SYSLOG_NG)
    path = log_file(run)
    run.start(run.text(block))
    run.wait_found(LINE, feed=path)


def prometheus(run: PageRun, block: Block) -> None:
    copy(run, "prometheus.yml")
    unpacked(run, "prometheus", f'{DEBIAN}/usr/bin/prometheus "$@"')
    (run.folder / "etc" / "prometheus").mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"  # Prometheus scrapes itself
    run.replaced |= {"127.0.0.1:9100": address, "SCRAPE_INTERVAL=15s": "SCRAPE_INTERVAL=1s"}
    run.shell(run.text(block))
    run.start(
        "prometheus --config.file=etc/prometheus/prometheus.yml --storage.tsdb.path=tsdb"
        f" --web.listen-address={address}"
    )
    run.wait_found("prometheus_build_info", "-q", "build_info", "--kind", "metrics")


def collectd(run: PageRun, block: Block) -> None:
    copy(run, "collectd.conf")
    unpacked(run, "collectd", f'{DEBIAN}/usr/sbin/collectd "$@"')
    log_file(run)
    for name in ("etc/collectd", "run"):
        (run.folder / name).mkdir(parents=True)
    run.shell(run.text(block))
    config = run.folder / "etc" / "collectd" / "collectd.conf"
    config.write_text(
        f'BaseDir "{run.folder}"\nPIDFile "{run.folder}/collectd.pid"\n'
        f'PluginDir "{DEBIAN}/usr/lib/collectd"\nTypesDB "{DEBIAN}/usr/share/collectd/types.db"\n'
        f"{config.read_text()}"
    )
    run.start(f"collectd -f -C {config}")
    path, end_s = run.folder / "run" / "collectd.sock", time.monotonic() + READY_S
    while not path.exists():
        assert time.monotonic() < end_s
        time.sleep(0.1)
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(str(path))
        answers = control.makefile("rb")
        value = f"PUTVAL shop-1/documented/gauge interval=10 {time.time():.3f}:1\n"
        for command in (value.encode(), b"FLUSH\n"):
            control.sendall(command)
            assert answers.readline().startswith(b"0 ")
            time.sleep(1.0)  # a thread writes the value later
    run.wait_found("documented", '{plugin="documented"}', "--json")


def python_library(name: str) -> BlockRunner:
    """Return what runs the program of a page whose library is among those of the clients."""

    def start(run: PageRun, block: Block) -> None:
        wrap(run, "python", f'PYTHONPATH={needs(PYTHON)} exec {sys.executable} "$@"')
        run_lines(run, block, f"{name}.py")

    return start


def run_lines(run: PageRun, block: Block, name: str) -> None:
    """Run the program of a page with one line."""
    copy(run, name)
    (run.folder / "lines").write_text(f"{LINE}\n")
    run.shell(run.text(block))
    run.wait_found(LINE)


def opentelemetry_python(run: PageRun, block: Block) -> None:
    run_lines(run, block, "opentelemetry-python.py")


def fluency(run: PageRun, block: Block) -> None:
    copy(run, "fluency.java")
    (run.folder / "lib").symlink_to(needs(JAVA))
    (run.folder / "lines").write_text(f"{LINE}\n")
    run.shell(run.text(block))
    run.wait_found(LINE)


def promtail(run: PageRun, block: Block) -> None:
    copy(run, "promtail.yaml")
    (run.programs / "promtail").symlink_to(needs(BIN / "promtail"))
    (run.folder / "run").mkdir()
    path = log_file(run)
    run.start(run.text(block))
    run.wait_found(LINE, "-q", LINE, '{app="shop"}', feed=path)


def opentelemetry_node(run: PageRun, block: Block) -> None:
    copy(run, "opentelemetry-node.mjs")
    (run.folder / "node_modules").symlink_to(needs(NODE / "node_modules"))
    (run.folder / "lines").write_text(f"{LINE}\n")
    run.shell(run.text(block))
    run.wait_found(LINE)


def pino_loki(run: PageRun, block: Block) -> None:
    (run.programs / "pino-loki").symlink_to(needs(NODE / "node_modules/.bin/pino-loki"))
    line = json.dumps({"level": 30, "time": time.time_ns() // 10**6, "msg": LINE})
    (run.folder / "app.js").write_text(f"console.log({json.dumps(line)})\n")
    run.shell(run.text(block))
    run.wait_found(LINE, "-q", LINE, '{app="shop"}')


def agent(run: PageRun, block: Block) -> None:
    """Start the agent of the block, and the gateway that it names."""
    run.replaced["http://gateway:8080"] = f"http://{run.address}"
    run.replaced["5514"] = str(free_port())
    run.wait_ready(run.start("sluice agent init >> principals.toml; sluice gateway"))
    run.start(run.text(block) + " --host-metrics-s 0")
    wait_for_port(int(run.replaced["5514"]), run.started[-1])


def rsyslog_to_agent(run: PageRun, block: Block) -> None:
    unpacked(run, "rsyslogd", RSYSLOG)
    path = log_file(run)
    (run.folder / "rsyslog.conf").write_text(
        f'global(workDirectory="{run.folder}")\nmodule(load="imfile" mode="polling"'
        f' pollingInterval="1")\ninput(type="imfile" File="{path}" Tag="shop:")\n{run.text(block)}'
    )
    run.start("rsyslogd -f rsyslog.conf")
    run.wait_found(LINE, feed=path)


def syslog_ng_to_agent(run: PageRun, block: Block) -> None:
    unpacked(run, "syslog-ng", SYSLOG_NG)
    path = run.folder / "syslog-ng.log"  # rsyslog still follows the other one
    path.touch()
    (run.folder / "var" / "lib" / "syslog-ng").mkdir(parents=True)
    (run.folder / "syslog-ng.conf").write_text(
        f'@version: 3.38\nsource s_src {{ file("{path}" follow-freq(1) flags(no-parse)'
        f' program-override("shop")); }};\n{run.text(block)}'
    )
    config = run.folder / "syslog-ng.conf"
    config.write_text(config.read_text().replace("capacity-bytes", "disk-buf-size"))  # before 4.0
    run.start("syslog-ng --foreground -f syslog-ng.conf")
    run.wait_found("record of syslog-ng", feed=path)


def tls_agent(run: PageRun, port: int) -> None:
    """Start another agent, which receives over TLS, with certificates where the pages name them."""
    authority = TestAuthority(run.folder / "etc" / "sluice")
    server = authority.issue("server", usage=SERVER, dns="agent.example")
    authority.issue("sender")
    run.start(
        f"sluice agent run --gateway http://{run.address} --syslog 'tls://127.0.0.1:{port}"
        f"?cert={server.certificate}&key={server.key}&client_ca={authority.path}'"
        f" --spool spool-tls --host-metrics-s 0"
    )
    wait_for_port(port, run.started[-1])


def rsyslog_over_tls(run: PageRun, block: Block) -> None:
    """Only the address is replaced: the name in the certificate is that of the page."""
    needs(DEBIAN / "usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_gtls.so")
    unpacked(run, "rsyslogd", RSYSLOG)
    port = free_port()
    run.replaced |= {'target="agent.example"': 'target="127.0.0.1"', "6514": str(port)}
    tls_agent(run, port)
    path, work = run.folder / "tls.log", run.folder / "tls"
    path.touch()
    work.mkdir()
    (run.folder / "rsyslog-tls.conf").write_text(
        f'global(workDirectory="{work}")\nmodule(load="imfile" mode="polling"'
        f' pollingInterval="1")\ninput(type="imfile" File="{path}" Tag="shop:")\n{run.text(block)}'
    )
    run.start("rsyslogd -f rsyslog-tls.conf")
    run.wait_found("record over TLS", feed=path)


def syslog_ng_over_tls(run: PageRun, block: Block) -> None:
    """Send to the agent that receives from rsyslog."""
    port = int(run.replaced["6514"])
    path = run.folder / "syslog-ng-tls.log"
    path.touch()
    (run.folder / "syslog-ng-tls.conf").write_text(
        f'@version: 3.38\nsource s_src {{ file("{path}" follow-freq(1) flags(no-parse)'
        f' program-override("shop")); }};\ndestination d_tls {{ syslog("127.0.0.1" port({port})'
        f' transport("tls")\n{run.text(block)}); }};\n'
        "log { source(s_src); destination(d_tls); };\n"
    )
    command = SYSLOG_NG.replace("./persist", "./persist-tls").replace("./pid", "./pid-tls")
    unpacked(run, "syslog-ng-tls", command.replace("./control", "./control-tls"))
    run.start("syslog-ng-tls --foreground -f syslog-ng-tls.conf")
    run.wait_found("record of syslog-ng over TLS", feed=path)


def agent_of_fluent(run: PageRun, block: Block) -> None:
    """Start the agent of the block, and send a chunk to it as a client does."""
    port = free_port()
    run.replaced |= {"http://gateway:8080": f"http://{run.address}", "24224": str(port)}
    run.shell("sluice agent init >> principals.toml")
    run.start(run.text(block) + " --host-metrics-s 0")
    wait_for_port(port, run.started[-1])
    text = "record through an agent"
    entries = [[int(time.time()), {"message": text}]]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(msgpack.packb(["app", entries, {"chunk": "c"}]))
        assert msgpack.unpackb(connection.recv(4096)) == {"ack": "c"}
    run.wait_found(text)


NO_PACKAGE = "there is no package of this client; tests send what its source writes"
SPLUNK = "the client is not free; tests send what its documentation contains"

RUNNERS: dict[str, tuple[BlockRunner, ...]] = {
    "alloy": (open_doors, serves_urls),
    "collectd": (open_doors, collectd),
    "elasticsearch-python": (open_doors, python_library("elasticsearch-python")),
    "filebeat": (open_doors, filebeat),
    "firehose": (open_doors,),
    "fluency": (open_doors, fluency),
    "fluent": (open_doors, fluent_bit, NotRun(NO_PACKAGE), agent_of_fluent),
    "fluent-bit": (open_doors, fluent_bit),
    "loki4j": (open_doors,),
    "opentelemetry-collector": (open_doors, collector),
    "opentelemetry-node": (open_doors, opentelemetry_node),
    "opentelemetry-python": (open_doors, opentelemetry_python),
    "pino-loki": (open_doors, pino_loki),
    "prometheus": (open_doors, prometheus),
    "promtail": (open_doors, promtail),
    "rsyslog": (open_doors, rsyslog),
    "splunk-handler": (open_doors, python_library("splunk-handler")),
    "splunk": (open_doors, serves_urls, NotRun(NO_PACKAGE), NotRun(NO_PACKAGE), NotRun(SPLUNK)),
    "syslog-ng": (open_doors, syslog_ng),
    "syslog-to-agent": (
        agent,
        rsyslog_to_agent,
        rsyslog_over_tls,
        syslog_ng_to_agent,
        syslog_ng_over_tls,
    ),
    "telegraf": (open_doors, telegraf),
    "vector": (open_doors, serves_urls),
}
"""What runs the blocks of a page, in their order."""


INSTALL_S = 900


@contextmanager
def readme_deployment(
    folder: Path, scratch: Path, wheel: Path, commands: str
) -> Iterator[LocalDeployment]:
    """Install and start sluice as the README does, on free ports, and stop it at the end.

    Args:
        folder: The empty folder.
        scratch: Where the environment is created.
        wheel: What is installed instead of the published version.
        commands: `pip install …` and `sluice up`, a line each.
    """
    uv, programs = Path(sys.executable).with_name("uv"), scratch / "venv" / "bin"
    subprocess.run(
        [uv, "venv", "--quiet", "--python", sys.executable, scratch / "venv"], check=True
    )
    pip = programs / "pip"
    pip.write_text(f'#!/bin/sh\nexec {uv} pip "$@" --quiet --python {programs}/python\n')
    pip.chmod(0o755)
    env = clean_environment(
        PATH=f"{programs}:{os.environ['PATH']}",
        SLUICE_UP_PORT=" ".join(f"{name}=0" for name in (*PORTS, "maintain")),
    )
    install, up = commands.splitlines()
    named = install.replace("/path/to/checkout[up]", f"{DISTRIBUTION}[up] @ file://{wheel}")
    subprocess.run(["bash", "-e", "-c", named], cwd=folder, env=env, check=True, timeout=INSTALL_S)
    assert list(folder.iterdir()) == []
    with (folder / "up.err").open("wb") as errors:
        process = subprocess.Popen(
            ["bash", "-e", "-c", f"exec {up}"], cwd=folder, env=env, stdout=errors, stderr=errors
        )
    state, end_s = folder / ".sluice-up" / "up.json", time.monotonic() + START_S
    try:
        while not state.exists():
            assert process.poll() is None, (folder / "up.err").read_text()
            assert time.monotonic() < end_s, (folder / "up.err").read_text()
            time.sleep(0.1)
        yield LocalDeployment(folder, process, json.loads(state.read_text()), programs)
    finally:
        stop_deployment(process)
