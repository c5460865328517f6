"""`sluice init` on a bucket of another region."""

import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.sluice_process import run_process

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
MALFORMED = (
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is"
    b" malformed; the region is wrong</Message></Error>"
)
REDIRECT = b"<Error><Code>PermanentRedirect</Code><Message>Use the endpoint</Message></Error>"


class _Elsewhere(BaseHTTPRequestHandler):
    """A bucket in eu-central-1; requests are signed for another region."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        names_it = "/named/" in self.path
        body = REDIRECT if names_it else MALFORMED
        self.send_response(301 if names_it else 400)
        if names_it:
            self.send_header("x-amz-bucket-region", "eu-central-1")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Date", self.date_time_string())
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT  # noqa: N815 - names of the base class

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("prefix", "named"),
    [
        ("named", "the bucket is in region=`eu-central-1`, the store URL has region=`us-west-2`"),
        ("unnamed", "region=`us-west-2`"),
    ],
)
def test_a_wrong_region_is_named(server: str, prefix: str, named: str) -> None:
    url = f"s3://bucket/{prefix}?endpoint={server}&region=us-west-2"
    command = (sys.executable, "-m", "sluice_cli", "init", "--store", url)
    done = run_process(command, env={**os.environ, **CREDENTIALS}, text=True)
    assert done.returncode != 0
    assert named in done.stderr
