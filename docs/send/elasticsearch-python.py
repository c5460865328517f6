"""Send lines of standard input to the door `elasticsearch` by the Elasticsearch client."""

import os
import sys
import time
from datetime import UTC, datetime

from elasticsearch import ApiError, ConnectionTimeout, Elasticsearch
from elasticsearch import ConnectionError as NotConnected
from elasticsearch.helpers import bulk

CHUNK_BYTES = 64 * 1024

client = Elasticsearch(
    os.environ["SLUICE_URL"],  # http(s)://HOST:PORT of a gateway or its load balancer
    basic_auth=("python", os.environ["SLUICE_TOKEN"]),
    request_timeout=60,
)


def wait(reason: str) -> None:
    """Wait before the same records are sent again."""
    sys.stderr.write(f"cannot send, repeating: {reason}\n")
    time.sleep(1)


def send(lines: list[str]) -> None:
    """Send until every record is accepted: the same list again is accepted once."""
    # A record needs its own time: without it a repeated record is not recognised.
    now = datetime.now(UTC).isoformat()
    common = {"_op_type": "create", "_index": "shop", "@timestamp": now, "service.name": "shop"}
    actions = [{**common, "message": line} for line in lines]
    accepted = False
    while not accepted:
        try:
            bulk(client, actions, chunk_size=500)
            accepted = True
        except ApiError as error:
            if error.status_code not in {429, 502, 503, 504}:
                raise
            wait(f"status {error.status_code}")
        except (NotConnected, ConnectionTimeout):
            wait("no connection")


rest = b""
while chunk := os.read(0, CHUNK_BYTES):
    *lines, rest = (rest + chunk).split(b"\n")
    if lines:
        send([line.decode() for line in lines])
