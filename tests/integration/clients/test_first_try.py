"""Clients work at the first try with what `sluice up` prints, and with nothing else.

Each program has the settings that its own documentation shows first, with the address and the
token of the printed lines. Then a search shows time, body, level, service and host.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.client_programs import PYTHON
from support.commands import make_java_home
from support.local_deployment import LocalDeployment, clean_environment, free_ports, running
from support.store_versitygw import free_port, wait_for_port

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]

FOUND_S = 20.0
SENDERS = {
    "curl to Elasticsearch": (
        """curl -fsS -u "elastic:$TOKEN" -H 'Content-Type: application/json'"""
        """ $ELASTICSEARCH/web/_doc -d '{"message":"first try","level":"error","""
        """"service":"shop","host":"web-1"}'"""
    ),
    "curl of a bulk request with unknown keys": (
        """printf '%s\\n' '{"index":{"_index":"web","retry":1},"attempts":1}'"""
        """ '{"message":"first try","level":"error","service":"shop","host":"web-1"}'"""
        """ | curl -fsS -H "Authorization: ApiKey $TOKEN" -H 'Content-Type: application/x-ndjson'"""
        """ $ELASTICSEARCH/_bulk --data-binary @-"""
    ),
    "curl to Loki": (
        """curl -fsS -u "any:$TOKEN" -H 'Content-Type: application/json' -H 'X-Scope-OrgID: t'"""
        """ $LOKI -d '{"streams":[{"stream":{"service":"shop","host":"web-1","level":"error"},"""
        """"values":[["'$(date +%s%N)'","first try"]]}]}'"""
    ),
    "curl to Splunk's collector": (
        """curl -fsS -H "Authorization: Splunk $TOKEN" $SPLUNK_HEC -d '{"event":{"message":"""
        """"first try","level":"error","service":"shop"},"host":"web-1"}'"""
    ),
    "curl of a line of Bunyan": (
        """curl -fsS -H "Authorization: Bearer $TOKEN" $JSON -d '{"name":"shop","""
        """"hostname":"web-1","pid":1,"level":50,"msg":"first try","v":0}'"""
    ),
    "the Elasticsearch client of Python": (
        """$PYTHON -c 'import os
from elasticsearch import Elasticsearch
client = Elasticsearch(os.environ["ELASTICSEARCH"], api_key=os.environ["TOKEN"])
document = {"message": "first try", "level": "error", "service": "shop", "host": "web-1"}
client.index(index="web", document=document)'"""
    ),
    "the protocol of Fluent without a handshake": (
        """$PYTHON -c 'import msgpack, os, socket, time
host, _, port = os.environ["FLUENT_FORWARD"].partition(":")
record = {"message": "first try", "level": "error", "service": "shop", "host": "web-1"}
with socket.create_connection((host, int(port))) as connection:
    connection.sendall(msgpack.packb(["app", int(time.time()), record, {"chunk": "x"}]))
    assert msgpack.unpackb(connection.recv(4096)) == {"ack": "x"}'"""
    ),
}
"""A command for each kind of client. Its variables are what `sluice up` prints."""
ANSWER = {"body": "first try", "level": "error", "service": "shop", "host": "web-1"}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDeployment]:
    folder = tmp_path_factory.mktemp("up")
    with running(folder, *free_ports(), JAVA_HOME=make_java_home(folder, None)) as started:
        yield started


def printed(deployment: LocalDeployment) -> dict[str, str]:
    """Return the address of each protocol as a variable, and the token of the named file."""
    found = {
        re.sub(r"\W+", "_", name).upper(): text.split()[0]
        for name, text in deployment.state["clients"].items()
    }
    token = Path(deployment.state["token_file"]).read_text().strip()
    return {**found, "TOKEN": token, "PYTHON": sys.executable, "PYTHONPATH": str(PYTHON)}


def send(deployment: LocalDeployment, command: str) -> None:
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=deployment.folder, env=clean_environment(**printed(deployment)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


def wait_record(deployment: LocalDeployment, after: int, text: str = "first") -> dict[str, Any]:
    """Return the newest record when the search finds over `after` of them."""
    end_s = time.monotonic() + FOUND_S
    while len(found := deployment.search(text)) <= after:
        assert time.monotonic() < end_s, found
        time.sleep(0.1)
    return max(found, key=lambda one: str(one["ts"]))


@pytest.mark.parametrize("client", SENDERS)
def test_a_client_works_with_what_is_printed(deployment: LocalDeployment, client: str) -> None:
    if "elasticsearch" in SENDERS[client] and not (PYTHON / "elasticsearch").exists():
        pytest.skip("the client is missing: run `deploy/clients/build.sh python_clients`")
    before = len(deployment.search("first"))
    send(deployment, SENDERS[client])
    found = wait_record(deployment, before)
    assert {name: found.get(name) for name in ANSWER} == ANSWER


def test_the_printed_agent_receives_syslog(deployment: LocalDeployment) -> None:
    """`logger` of util-linux and Python's handler, which ends messages with NUL, over TCP."""
    port = str(free_port())
    line = deployment.state["first_steps"]["send files and syslog"].replace("5514", port)
    path = f"{deployment.programs}:{os.environ['PATH']}"
    agent = subprocess.Popen(
        ["bash", "-c", f"exec {line} --host-metrics-s 0"],
        cwd=deployment.folder, env=clean_environment(PATH=path), stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(int(port), agent)
        program = (
            "import logging.handlers, socket\n"
            f"one = logging.handlers.SysLogHandler(('127.0.0.1', {port}),"
            " socktype=socket.SOCK_STREAM)\n"
            "one.ident = 'shop: '\n"
            "logging.getLogger().addHandler(one)\n"
            "logging.error('ended by NUL')\n"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
        found = wait_record(deployment, 0, "NUL")
        # It sends no time and no host, so its text is the body as a whole.
        assert (found["body"], found["level"]) == ("shop: ended by NUL", "error")
        assert found["host"] == "127.0.0.1", "the address of its sender"
        if shutil.which("logger"):
            words = ["logger", "-n", "127.0.0.1", "-P", port, "-T", "-t", "shop", "-p", "user.err"]
            subprocess.run([*words, "by logger"], check=True, timeout=60)
            found = wait_record(deployment, 0, "logger")
            assert (found["body"], found["level"]) == ("by logger", "error")
            assert found["service"] == "shop"
    finally:
        agent.terminate()
        agent.wait(30)


def test_a_client_of_docs_send_needs_the_printed_line_only(deployment: LocalDeployment) -> None:
    """The programs of the pages read the two variables that the line exports."""
    if not (PYTHON / "elasticsearch").exists():
        pytest.skip("the client is missing: run `deploy/clients/build.sh python_clients`")
    page = Path(__file__).parents[3] / "docs/send/elasticsearch-python.py"
    line = deployment.state["first_steps"]["set up a client of docs/send"]
    send(deployment, f"{line}; echo 'printed line' | $PYTHON {page}")
    assert wait_record(deployment, 0, "printed")["body"] == "printed line"
