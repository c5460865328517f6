"""Principals: who may send for which agents, and who sent a request.

The principals file is TOML. It is read at the start, and again when it changes; while it is
invalid, its last valid content stays in effect.

    [[principals]]
    name = "host-1"
    roles = ["agent"]                       # "agent", "operator" or both
    agents = ["host-1"]                     # exact agent ids
    keys = [{ id = "k1", ed25519 = "…" }]   # base64 of the 32 raw bytes; several for a roll-over
    spiffe = "spiffe://td/agent/host-1"     # one exact URI SAN, or
    agent_template = "spiffe://td/agent/{agent}"
    tokens = [{ id = "t1", sha256 = "…" }]  # `sluice token create`; for clients that cannot sign
    doors = ["otlp", "json"]                # which doors the principal may use
    forward = [{ id = "f1", shared_key = "…" }]   # keys of Fluent's handshake; optionally
                                            # `username` and `password`. Readable: ADR 21.

`{agent}` is one whole path segment: the lower-case hex of the agent id. Source: ADR 12.

A request is authenticated from its head, before its body is read. A batch upload has an Ed25519
signature, which libsodium verifies, or a client certificate with a SPIFFE id. A signature covers
Content-Digest, which `frame_reader` compares with the body. A client of a door that cannot sign
sends a token, in one of the fields that such clients can be configured to send.
"""

import base64
import binascii
import datetime as dt
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog
from aiohttp import web
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from sluice_doors.requests import sent_token
from sluice_doors.table import DoorName
from sluice_protocol.errors import BadUsage, Unauthenticated
from sluice_protocol.identity import check_door_principal, is_door_agent
from sluice_protocol.signatures import (
    KEY_ID_CHARS_MAX,
    read_signature,
    verify_signature,
    view_request,
)
from sluice_web.tokens import token_sha256

PrincipalRole = Literal["agent", "operator"]
SHARED_KEY_CHARS_MIN: Final = 16
_AGENT_SEGMENT: Final = r"(?P<agent>(?:[0-9a-f]{2}){1,120})"
_PLACEHOLDER: Final = "{agent}"
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
FILE_BYTES_MAX: Final = 16 * 1024 * 1024

log = structlog.get_logger()


class SenderKey:
    """An Ed25519 public key."""

    __slots__ = ("_key",)

    def __init__(self, raw: bytes) -> None:
        self._key = VerifyKey(raw)

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether the key made a signature; false for a degenerate key or signature."""
        try:
            self._key.verify(data, signature)
        except CryptoError:
            return False
        return True


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public key of a principal; it is not accepted after `not_after`."""

    id: str
    ed25519: str
    not_after: dt.datetime | None = None


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sha256 of one token of a principal; it is not accepted after `not_after`."""

    id: str
    sha256: str
    not_after: dt.datetime | None = None


class ForwardKeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shared key of Fluent's handshake, for one user where `username` is set."""

    id: str
    shared_key: str
    username: str | None = None
    password: str = ""
    not_after: dt.datetime | None = None


class PrincipalEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One principal of the file."""

    name: str
    roles: tuple[PrincipalRole, ...] = ("agent",)
    agents: tuple[str, ...] = ()
    keys: tuple[KeyEntry, ...] = ()
    tokens: tuple[TokenEntry, ...] = ()
    forward: tuple[ForwardKeyEntry, ...] = ()
    doors: tuple[DoorName, ...] = ()
    spiffe: str | None = None
    agent_template: str | None = None


class PrincipalsDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    principals: tuple[PrincipalEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSender:
    """The sender of a request, as far as it was proved.

    `principal` is the name that the manifest records. An operator may read and resolve all
    conflicts.
    """

    principal: str
    agents: frozenset[str]
    operator: bool
    doors: frozenset[DoorName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A public key and its owner."""

    key: SenderKey
    sender: VerifiedSender
    not_after_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToken:
    """The owner of a token."""

    sender: VerifiedSender
    not_after_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownForwardKey:
    """A shared key and its owner; `username` is None where no user is required."""

    shared_key: str
    username: str | None
    password: str
    sender: VerifiedSender
    not_after_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderTemplate:
    """The SPIFFE ids of a principal that is many agents, and what each of them may do."""

    pattern: re.Pattern[str]
    operator: bool
    doors: frozenset[DoorName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principals:
    """The content of the file, indexed for lookups.

    `tokens` are found by the hex of their sha256, and `spiffe` by the exact SPIFFE id. Templates
    are patterns of SPIFFE ids with the agent in one segment, each with its roles.
    """

    keys: Mapping[str, KnownKey]
    tokens: Mapping[str, KnownToken]
    forward: Mapping[str, KnownForwardKey]
    names: Mapping[str, VerifiedSender]
    spiffe: Mapping[str, VerifiedSender]
    templates: tuple[SenderTemplate, ...]

    def key_of(self, key_id: str, now_s: int) -> KnownKey:
        """Return the key with this id."""
        known = self.keys.get(key_id)
        if known is None:
            raise Unauthenticated("no principal has this key id")
        if known.not_after_s is not None and now_s > known.not_after_s:
            raise Unauthenticated("the key's not_after has passed")
        return known

    def token_sender(self, token: str, now_s: int) -> VerifiedSender:
        """Return the owner of a token.

        The lookup is by the digest of the token, so its time reveals nothing about known tokens.
        """
        known = self.tokens.get(token_sha256(token))
        if known is None:
            raise Unauthenticated("no principal has this token")
        if known.not_after_s is not None and now_s > known.not_after_s:
            raise Unauthenticated("the token's not_after has passed")
        return known.sender

    def spiffe_sender(self, uri: str) -> VerifiedSender:
        """Return the sender with this SPIFFE id."""
        exact = self.spiffe.get(uri)
        if exact is not None:
            return exact
        for template in self.templates:
            found = template.pattern.fullmatch(uri)
            if found is not None:
                return VerifiedSender(
                    principal=uri,
                    agents=frozenset({_agent_of(found["agent"])}),
                    operator=template.operator,
                    doors=template.doors,
                )
        raise Unauthenticated("no principal has this SPIFFE id")


def parse_principals(text: str) -> Principals:
    """Parse the text of a principals file."""
    try:
        document = msgspec.convert(tomllib.loads(text), PrincipalsDocument)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise BadUsage(f"principals file is not valid: {error}") from error
    entries = document.principals
    _refuse_duplicates("name", [entry.name for entry in entries])
    _refuse_duplicates("key id", [key.id for entry in entries for key in entry.keys])
    _refuse_duplicates("token", [token.sha256 for entry in entries for token in entry.tokens])
    _refuse_duplicates("forward id", [key.id for entry in entries for key in entry.forward])
    _refuse_duplicates("spiffe", [entry.spiffe for entry in entries if entry.spiffe is not None])
    return Principals(
        keys={key.id: _known(entry, key) for entry in entries for key in entry.keys},
        tokens={
            token.sha256: _known_token(entry, token) for entry in entries for token in entry.tokens
        },
        forward={key.id: _known_forward(entry, key) for entry in entries for key in entry.forward},
        names={entry.name: _sender(entry) for entry in entries},
        spiffe={entry.spiffe: _sender(entry) for entry in entries if entry.spiffe is not None},
        templates=tuple(
            SenderTemplate(
                pattern=_template(entry),
                operator="operator" in entry.roles,
                doors=frozenset(entry.doors),
            )
            for entry in entries
            if entry.agent_template is not None
        ),
    )


def _refuse_duplicates(what: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadUsage(f"principals file contains a duplicate {what}, {what}=`{twice[0]}`")


def _sender(entry: PrincipalEntry) -> VerifiedSender:
    if entry.doors:
        check_door_principal(entry.name)
    reserved = [agent for agent in entry.agents if is_door_agent(agent)]
    if reserved:
        raise BadUsage(f"agent ids that begin with door: are reserved, agent=`{reserved[0]}`")
    return VerifiedSender(
        principal=entry.name,
        agents=frozenset(entry.agents if "agent" in entry.roles else ()),
        operator="operator" in entry.roles,
        doors=frozenset(entry.doors),
    )


def _known_token(entry: PrincipalEntry, token: TokenEntry) -> KnownToken:
    if _SHA256.fullmatch(token.sha256) is None:
        raise BadUsage(
            f"sha256 of a token must be 64 hex digits in lower case: copy it from"
            f" `sluice token create`, token id=`{token.id}`"
        )
    return KnownToken(sender=_sender(entry), not_after_s=_seconds(token.not_after, token.id))


def _known_forward(entry: PrincipalEntry, key: ForwardKeyEntry) -> KnownForwardKey:
    if len(key.shared_key) < SHARED_KEY_CHARS_MIN:
        raise BadUsage(
            f"shared_key must have at least {SHARED_KEY_CHARS_MIN} characters, id=`{key.id}`"
        )
    return KnownForwardKey(
        shared_key=key.shared_key,
        username=key.username,
        password=key.password,
        sender=_sender(entry),
        not_after_s=_seconds(key.not_after, key.id),
    )


def _known(entry: PrincipalEntry, key: KeyEntry) -> KnownKey:
    if not 1 <= len(key.id) <= KEY_ID_CHARS_MAX:
        raise BadUsage(f"key id must be 1 to {KEY_ID_CHARS_MAX} characters, name=`{entry.name}`")
    try:
        raw = base64.b64decode(key.ed25519, validate=True)
        public = SenderKey(raw)
    except (binascii.Error, ValueError) as error:
        raise BadUsage(f"ed25519 is not base64 of 32 bytes, key id=`{key.id}`") from error
    return KnownKey(key=public, sender=_sender(entry), not_after_s=_seconds(key.not_after, key.id))


def _seconds(not_after: dt.datetime | None, name: str) -> int | None:
    if not_after is None:
        return None
    if not_after.tzinfo is None:
        raise BadUsage(f"not_after needs an offset, as in 2026-01-01T00:00:00Z, id=`{name}`")
    return int(not_after.timestamp())


def _template(entry: PrincipalEntry) -> re.Pattern[str]:
    text = entry.agent_template or ""
    segments = text.split("/")
    if (
        segments.count(_PLACEHOLDER) != 1
        or text.count("{") != 1
        or not text.startswith("spiffe://")
    ):
        raise BadUsage(
            "agent_template must be a SPIFFE id with {agent} as one whole segment,"
            f" name=`{entry.name}`"
        )
    head, _, tail = text.partition(_PLACEHOLDER)
    return re.compile(re.escape(head) + _AGENT_SEGMENT + re.escape(tail))


def _agent_of(hex_digits: str) -> str:
    try:
        return bytes.fromhex(hex_digits).decode()
    except UnicodeDecodeError as error:
        raise Unauthenticated("the SPIFFE id's agent segment is not UTF-8") from error


def read_principals(path: Path) -> Principals:
    """Read the file at `path`."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BadUsage(f"principals file is larger than {FILE_BYTES_MAX} bytes, path=`{path}`")
        return parse_principals(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadUsage(
            "no principals file: `sluice token create` and `sluice agent init` print entries for"
            f" it, or set `principals` to another path, path=`{path}`"
        ) from error
    except OSError as error:
        raise BadUsage(
            f"cannot read principals file: {error.strerror}; correct the path or its permissions,"
            f" path=`{path}`"
        ) from error
    except UnicodeDecodeError as error:
        raise BadUsage(f"principals file is not UTF-8: {error}, path=`{path}`") from error


class PrincipalsFile:
    """The file on disk and its last valid content, which is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_state = self._seen_state = _file_state(path)
        self.current = read_principals(path)
        self.failed = False

    def reload(self) -> bool:
        """Read the file again where it changed; keep the last content where it is not valid.

        A program may write the file in several steps, and the file can be valid between two of
        them. So a change takes effect when two calls in a row see the same file. A file without any
        principal is not valid here: it was probably cut off. Return True if new content is in
        effect.
        """
        state = _file_state(self._path)
        is_settled, self._seen_state = state == self._seen_state, state
        if state == self._file_state or not is_settled:
            return False
        self._file_state = state
        try:
            self.current = _read_some(self._path)
        except BadUsage as error:
            self.failed = True
            log.error("principals_invalid", reason=str(error))  # noqa: TRY400 - a typo needs no traceback
            return False
        self.failed = False
        log.info("principals_reloaded", keys=len(self.current.keys))
        return True


def _read_some(path: Path) -> Principals:
    found = read_principals(path)
    if not found.names:
        raise BadUsage(
            "principals file contains no principal: write it again, or stop the gateway to refuse"
            f" everybody, path=`{path}`"
        )
    return found


def _file_state(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def authenticate(request: web.Request, principals: Principals, now_s: int) -> VerifiedSender:
    """Return the sender of a request."""
    if "Signature-Input" in request.headers:
        return _by_signature(request, principals, now_s)
    certificate = request.get_extra_info("peercert")
    if not certificate:
        raise Unauthenticated("neither a signature nor a client certificate")
    return principals.spiffe_sender(spiffe_id(certificate))


def spiffe_id(certificate: Mapping[str, object]) -> str:
    """Return the one URI SAN of a verified certificate of `ssl.SSLSocket.getpeercert`."""
    names = certificate.get("subjectAltName")
    pairs = names if isinstance(names, tuple) else ()
    uris = [value for kind, value in pairs if kind == "URI"]
    if len(uris) != 1 or not uris[0].startswith("spiffe://"):
        raise Unauthenticated("the client certificate has not exactly one SPIFFE URI SAN")
    return str(uris[0])


def _by_signature(request: web.Request, principals: Principals, now_s: int) -> VerifiedSender:
    path, _, query = request.raw_path.partition("?")
    view = view_request(
        method=request.method,
        authority=request.headers.get("Host", ""),
        path=path,
        query=query,
        headers=request.headers.items(),
    )
    claim = read_signature(view, now_s=now_s)
    known = principals.key_of(claim.key_id, now_s)
    verify_signature(claim, known.key)
    if request.method == "POST" and not claim.covers_body:
        raise Unauthenticated("the signature of a POST must cover content-digest")
    return known.sender


def authenticate_door(request: web.Request, principals: Principals, now_s: int) -> VerifiedSender:
    """Return the sender of a request to a door."""
    token = sent_token(request.headers)
    if token is not None:
        return principals.token_sender(token, now_s)
    if "Signature-Input" not in request.headers and not request.get_extra_info("peercert"):
        raise Unauthenticated("neither a token, a signature nor a client certificate")
    return authenticate(request, principals, now_s)
