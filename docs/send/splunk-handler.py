"""Log lines of standard input to the door `hec` by the logging handler for Splunk."""

import logging
import os
import socket
import sys
from urllib.parse import urlsplit

from splunk_handler import SplunkHandler

url = os.environ["SLUICE_URL"]  # http(s)://HOST:PORT of a gateway or its load balancer
handler = SplunkHandler(
    host="",
    port=0,
    url=f"{url}/services/collector/event",
    protocol=urlsplit(url).scheme,
    verify=urlsplit(url).scheme == "https",
    token=os.environ["SLUICE_TOKEN"],
    index="main",
    source="shop",
    hostname=socket.gethostname(),
    flush_interval=1.0,
    queue_size=0,  # no limit; records that do not fit are dropped
    retry_count=1_000_000,  # the default drops a batch after five retries
    retry_backoff=0.1,
    timeout=60,
)
logging.getLogger("urllib3").addHandler(logging.StreamHandler())  # without it, retries are silent
logger = logging.getLogger("shop")
logger.setLevel(logging.INFO)
logger.addHandler(handler)

for line in sys.stdin:
    logger.info(line.rstrip("\n"))
handler.force_flush()
