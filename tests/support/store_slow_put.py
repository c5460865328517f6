"""A PUT whose second half arrives late, to measure what Last-Modified means on a server."""

import http.client
import time
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from support.store_versitygw import ACCESS, SECRET

from sluice_protocol.units import NS_PER_S

DELAY_S = 3.0
BODY = b"x" * 65536


def put_slowly(endpoint: str, bucket: str, key: str) -> tuple[int, int]:
    """Return when the last byte was sent, and when the server responded, Unix ns."""
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    url = urlsplit(client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": key}))
    wire = http.client.HTTPConnection(url.netloc, timeout=30)
    try:
        wire.putrequest("PUT", f"{url.path}?{url.query}")
        wire.putheader("Content-Length", str(len(BODY)))
        wire.endheaders()
        wire.send(BODY[:32768])
        time.sleep(DELAY_S)
        wire.send(BODY[32768:])
        sent_ns = time.time_ns()
        answer = wire.getresponse()
        answer.read()
        assert answer.status == http.client.OK, answer.status
        return sent_ns, time.time_ns()
    finally:
        wire.close()


def assert_dated_when_complete(last_modified_ns: int, sent_ns: int, responded_ns: int) -> None:
    """Assert that the object is dated by its application, to the second, not by its arrival."""
    assert sent_ns // NS_PER_S * NS_PER_S <= last_modified_ns <= responded_ns
