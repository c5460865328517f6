"""Record what the S3 server did with the registers of lanes, as the proxy before it sees that."""

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

KEY: Final = re.compile(r"/queue/v1/([^/]+)/manifest(\?|$)")
APPLIED: Final = 200
DIFFERS: Final = {404, 412}
"""A condition does not hold, and with `If-Match` there may be no object."""


class RegisterRecorder:
    """Writes registers.jsonl: each GET and PUT of a register with its condition and outcome.

    A state is named by the sha256 of its bytes, which are written with its first line. A condition
    names an ETag that the server returned before. A request without a response has no end.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "registers.jsonl").open("w")
        self._operations = 0
        self._states: dict[str, str] = {}
        self._written: set[str] = set()
        self._versions: dict[str, list[str]] = {}

    def close(self) -> None:
        self._file.close()

    def begin(self, request: web.BaseRequest, body: bytes) -> int:
        """Record a request of a register, and return its number; 0 for any other request."""
        found = KEY.search(request.raw_path)
        if request.method == "DELETE" and not self._is_replaced(request):  # by `sluice rebuild`
            self.harmed(request.path, b"")
        if found is None or request.method not in {"GET", "PUT"}:
            return 0
        self._operations += 1
        more: dict[str, object] = {"call": "read", "register": found[1]}
        if request.method == "PUT":
            more |= {"call": "write", "expected": self._expected(request.headers)}
            more |= self._state(body)
        self._write("invoke", self._operations, more)
        return self._operations

    def _is_replaced(self, request: web.BaseRequest) -> bool:
        """Return True if it removes a version after which a newer one was seen: an erasure does."""
        found = KEY.search(request.raw_path)
        seen = self._versions.get(found[1], []) if found else []
        return request.query.get("versionId") in seen[:-1]

    def _expected(self, headers: Mapping[str, str]) -> str:
        if headers.get("If-None-Match") == "*":
            return ""
        tag = headers.get("If-Match")
        return "unconditional" if tag is None else self._states.get(tag, f"unknown {tag}")

    def end(self, op: int, answer: web.Response, sent: bytes, request: web.BaseRequest) -> None:
        """Record the response to a request; another status leaves its outcome unknown."""
        method, found = request.method, KEY.search(request.raw_path)
        body = answer.body if method == "GET" else sent
        assert isinstance(body, bytes)
        if answer.status == APPLIED:
            self._states[answer.headers["ETag"]] = hashlib.sha256(body).hexdigest()
            version = answer.headers.get("x-amz-version-id")
            if found and method == "PUT" and version:
                self._versions.setdefault(found[1], []).append(version)
            result = "read" if method == "GET" else "applied"
            self._write("ok", op, {"result": result, **self._state(body)})
        elif answer.status in DIFFERS:
            self._write("ok", op, {"result": "absent" if method == "GET" else "differs"})

    def harmed(self, key: str, body: bytes) -> None:
        """Record, before it happens, that a fault or a repair replaces a register, or removes it.

        It is removed if there are no bytes. The moment of its effect is unknown.
        """
        if (found := KEY.search(f"/{key}")) is not None:
            self._operations += 1
            state = self._state(body) if body else {"sha256": ""}
            more = {"call": "harm", "register": found[1], "expected": "unconditional", **state}
            self._write("invoke", self._operations, more)

    def _state(self, body: bytes) -> dict[str, str]:
        sha256 = hashlib.sha256(body).hexdigest()
        if sha256 in self._written:
            return {"sha256": sha256}
        self._written.add(sha256)
        return {"sha256": sha256, "body": base64.b64encode(body).decode()}

    def _write(self, event: str, op: int, more: Mapping[str, object]) -> None:
        line = {"op": op, "event": event, "time": time.time_ns(), **more}
        self._file.write(json.dumps(line) + "\n")
