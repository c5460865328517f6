"""The static files of the console, and the security fields of every response."""

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import hdrs, web

from sluice_protocol.errors import ErrorCode
from sluice_web.endpoints import Endpoint
from sluice_web.problems import HttpRefusal

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMPORT_MAP: Final = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
_FIELDS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticFile:
    """One file in memory."""

    media_type: str
    body: bytes
    compressed: bytes
    etag: str


def read_site() -> Mapping[str, StaticFile]:
    """Return every file of the site by its path below `static/`."""
    found: dict[str, StaticFile] = {}
    _read_folder(files("sluice_console") / "static", "", found)
    return found


def _read_folder(folder: Traversable, prefix: str, found: dict[str, StaticFile]) -> None:
    for one in folder.iterdir():
        if one.is_dir():
            _read_folder(one, f"{prefix}{one.name}/", found)
            continue
        media_type = _TYPES.get("." + one.name.rpartition(".")[2])
        if media_type is not None:
            body = one.read_bytes()
            found[prefix + one.name] = StaticFile(
                media_type=media_type,
                body=body,
                compressed=gzip.compress(body, 9, mtime=0),
                etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            )


def content_policy(page: bytes) -> str:
    """Return the Content-Security-Policy of the page.

    Scripts and styles come from this origin only. The one inline element is the import map, which
    is allowed by its hash. Trusted Types prevent turning strings into HTML or scripts.
    """
    found = _IMPORT_MAP.search(page.decode())
    digest = hashlib.sha256((found[1] if found else "").encode()).digest()
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'sha256-{base64.b64encode(digest).decode()}'",
            "style-src 'self'",
            "img-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


class ConsoleSite:
    """The endpoints of the static files, and the fields of every response."""

    def __init__(self) -> None:
        self._files = read_site()
        self._policy = content_policy(self._files["index.html"].body)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints."""
        return (
            Endpoint(
                method="GET",
                path="/",
                handler=self._send_page,
                summary="Return the page",
                result_type="text/html",
                linked=True,
                needs_token=False,
            ),
            Endpoint(
                method="GET",
                path="/static/{path:.+}",
                handler=self._send_file,
                summary="Return a file of the page",
                result_type="application/octet-stream",
                needs_token=False,
            ),
        )

    async def add_fields(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the security fields; a signal of aiohttp calls it before each response."""
        response.headers.update(_FIELDS)
        response.headers[hdrs.CONTENT_SECURITY_POLICY] = self._policy
        response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
        del request

    async def _send_page(self, request: web.Request) -> web.Response:
        return self._send(request, "index.html")

    async def _send_file(self, request: web.Request) -> web.Response:
        return self._send(request, request.match_info["path"])

    def _send(self, request: web.Request, path: str) -> web.Response:
        found = self._files.get(path)
        if found is None:
            raise HttpRefusal(ErrorCode.NOT_FOUND, "no such file: open the page `/`")
        headers = {
            hdrs.CONTENT_TYPE: found.media_type,
            hdrs.ETAG: found.etag,
            hdrs.CACHE_CONTROL: "no-cache",
            hdrs.VARY: hdrs.ACCEPT_ENCODING,
        }
        if request.headers.get(hdrs.IF_NONE_MATCH) == found.etag:
            return web.Response(status=304, headers=headers)
        body = found.body
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            headers[hdrs.CONTENT_ENCODING] = "gzip"
            body = found.compressed
        return web.Response(body=body, headers=headers)
