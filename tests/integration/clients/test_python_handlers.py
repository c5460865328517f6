"""Python's `SysLogHandler` to an agent, and single documents of the Elasticsearch client."""

import asyncio
import json
import logging
import logging.handlers
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.client_programs import PYTHON
from support.door_fleet import fleet
from support.syslog_agent import rows, served

DOCUMENTS = """
import json, sys
from elasticsearch import Elasticsearch
client = Elasticsearch(sys.argv[1], api_key=sys.argv[2])
def document(message):
    return {"@timestamp": "2026-11-22T00:00:00Z", "message": message, "level": "info"}
found = [
    client.index(index="web", document=document("unnamed")),
    client.index(index="web", id="7", document=document("named")),
    client.index(index="web", id="8", document=document("once"), op_type="create"),
    client.create(index="web", id="9", document=document("created")),
    client.index(
        index="web", document=document("waits"), refresh="wait_for", timeout="5s", routing="a"
    ),
    client.options(request_timeout=30).index(
        index="web", document=document("filtered"), filter_path=["result", "_id", "_index"]
    ),
]
print(json.dumps([dict(one.body) for one in found]))
"""
MESSAGES = ("user logged in", "two\nlines", "umlaut: ü")


@pytest.mark.clients
def test_each_form_of_a_single_document_is_stored(tmp_path: Path) -> None:
    """The client accepts the responses; it refuses a server that is no Elasticsearch."""
    with fleet(tmp_path, "elasticsearch") as running:
        done = subprocess.run(
            [sys.executable, "-c", DOCUMENTS, f"http://{running.address}", running.token],
            env={**os.environ, "PYTHONPATH": str(PYTHON)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert {(one["_index"], one["result"]) for one in found} == {("web", "created")}
        assert [one["_id"] for one in found][1:4] == ["7", "8", "9"]
        assert running.bodies() == sorted(
            ["unnamed", "named", "once", "created", "waits", "filtered"]
        )


def test_a_syslog_handler_over_tcp_is_understood(tmp_path: Path) -> None:
    """Each call is one record, also with line feeds; the handler ends messages with NUL.

    It sends no time and no host, so its messages are bodies as a whole.
    """

    def log(port: int) -> None:
        handler = logging.handlers.SysLogHandler(
            ("127.0.0.1", port),
            facility=logging.handlers.SysLogHandler.LOG_LOCAL3,
            socktype=socket.SOCK_STREAM,
        )
        logger = logging.getLogger("shop")
        logger.addHandler(handler)
        for message in MESSAGES:
            logger.warning(message)
        try:
            int("broken")
        except ValueError:
            logger.exception("failed")
        logger.removeHandler(handler)
        handler.close()

    async def check(port: int) -> None:
        await asyncio.to_thread(log, port)

    served(tmp_path, "tcp", check)
    found = rows(tmp_path)
    bodies = [body for body, _ in found]
    assert bodies[:-1] == list(MESSAGES)
    assert bodies[-1].startswith("failed\nTraceback (most recent call last):\n")
    assert bodies[-1].endswith("ValueError: invalid literal for int() with base 10: 'broken'")
    assert {pairs["syslog.facility"] for _, pairs in found} == {"19"}
    assert not any("sluice.error" in pairs for _, pairs in found)
