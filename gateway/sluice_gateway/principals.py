"""Who may send for which agents: a TOML file, read again when it changes, the last good one kept.

    [[principals]]
    name = "host-1"
    roles = ["agent"]                       # "agent", "operator" or both
    agents = ["host-1"]                     # exact agent ids
    keys = [{ id = "k1", ed25519 = "…" }]   # base64 of the 32 raw bytes; several for a roll-over
    spiffe = "spiffe://td/agent/host-1"     # one exact URI SAN, or
    agent_template = "spiffe://td/agent/{agent}"

`{agent}` is one whole path segment: the lower-case hex of the agent id. Source: ADR 0021.
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
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sluice_protocol.errors import BadUsage, Unauthenticated
from sluice_protocol.signatures import KEY_ID_CHARS_MAX

Role = Literal["agent", "operator"]
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
_AGENT_SEGMENT: Final = r"(?P<agent>(?:[0-9a-f]{2}){1,120})"
_PLACE: Final = "{agent}"

log = structlog.get_logger()


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public key of a principal; `not_after` lets an old one run out by itself."""

    id: str
    ed25519: str
    not_after: dt.datetime | None = None


class PrincipalEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One principal as the file has it."""

    name: str
    roles: tuple[Role, ...] = ("agent",)
    agents: tuple[str, ...] = ()
    keys: tuple[KeyEntry, ...] = ()
    spiffe: str | None = None
    agent_template: str | None = None


class PrincipalsDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    principals: tuple[PrincipalEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sent a request, as far as it was proved.

    Attributes:
        principal: The name that goes into the manifest.
        agents: The agent ids that it may send for.
        operator: Whether it may read and resolve everybody's conflicts.
    """

    principal: str
    agents: frozenset[str]
    operator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A public key and whose it is."""

    key: Ed25519PublicKey
    sender: Sender
    not_after_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Principals:
    """The file's content, ready to be asked.

    Attributes:
        keys: Known keys by id.
        spiffe: Senders by exact SPIFFE id.
        templates: Patterns of SPIFFE ids with the agent in one segment, each with its roles.
    """

    keys: Mapping[str, KnownKey]
    spiffe: Mapping[str, Sender]
    templates: tuple[tuple[re.Pattern[str], bool], ...]

    def key_of(self, key_id: str, now_s: int) -> KnownKey:
        """Gives the key with this id.

        Raises:
            Unauthenticated: There is none, or its time has run out.
        """
        known = self.keys.get(key_id)
        if known is None:
            raise Unauthenticated("no principal has this key id")
        if known.not_after_s is not None and now_s > known.not_after_s:
            raise Unauthenticated("the key's not_after has passed")
        return known

    def spiffe_sender(self, uri: str) -> Sender:
        """Gives who presents this SPIFFE id.

        Raises:
            Unauthenticated: No principal has it.
        """
        exact = self.spiffe.get(uri)
        if exact is not None:
            return exact
        for pattern, operator in self.templates:
            found = pattern.fullmatch(uri)
            if found is not None:
                agents = frozenset({_agent_of(found["agent"])})
                return Sender(principal=uri, agents=agents, operator=operator)
        raise Unauthenticated("no principal has this SPIFFE id")


def parse_principals(text: str) -> Principals:
    """Reads the file.

    Raises:
        BadUsage: It is not TOML of this form, or two principals share a name, key id or SPIFFE id.
    """
    try:
        document = msgspec.convert(tomllib.loads(text), PrincipalsDocument)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise BadUsage(f"principals file is not valid: {error}") from error
    entries = document.principals
    _refuse_twice("name", [entry.name for entry in entries])
    _refuse_twice("key id", [key.id for entry in entries for key in entry.keys])
    _refuse_twice("spiffe", [entry.spiffe for entry in entries if entry.spiffe is not None])
    return Principals(
        keys={key.id: _known(entry, key) for entry in entries for key in entry.keys},
        spiffe={entry.spiffe: _sender(entry) for entry in entries if entry.spiffe is not None},
        templates=tuple(
            (_template(entry), "operator" in entry.roles)
            for entry in entries
            if entry.agent_template is not None
        ),
    )


def read_principals(path: Path) -> Principals:
    """Reads the file at `path`.

    Raises:
        BadUsage: It cannot be read, is too large, or is not valid.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BadUsage(f"principals file is over {FILE_BYTES_MAX} bytes, path=`{path}`")
        return parse_principals(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"principals file cannot be read: {error}, path=`{path}`") from error


class PrincipalsFile:
    """The file on disk and its last good content; the whole content changes at once."""

    def __init__(self, path: Path) -> None:
        """Reads the file for the first time.

        Raises:
            BadUsage: It is not valid; a gateway does not start without it.
        """
        self._path = path
        self._stamp = _stamp(path)
        self.current = read_principals(path)
        self.failed = False

    def reload(self) -> bool:
        """Reads the file again if it changed; keeps the last good content otherwise.

        Returns:
            Whether new content is in force.
        """
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.current = read_principals(self._path)
        except BadUsage as error:
            self.failed = True
            log.error("principals kept", reason=str(error))  # noqa: TRY400 - no trace of a typo
            return False
        self.failed = False
        log.info("principals reloaded", keys=len(self.current.keys))
        return True


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _refuse_twice(what: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadUsage(f"principals file names a {what} twice, {what}=`{twice[0]}`")


def _sender(entry: PrincipalEntry) -> Sender:
    return Sender(
        principal=entry.name,
        agents=frozenset(entry.agents if "agent" in entry.roles else ()),
        operator="operator" in entry.roles,
    )


def _known(entry: PrincipalEntry, key: KeyEntry) -> KnownKey:
    if not 1 <= len(key.id) <= KEY_ID_CHARS_MAX:
        raise BadUsage(f"key id must be 1 to {KEY_ID_CHARS_MAX} characters, name=`{entry.name}`")
    try:
        raw = base64.b64decode(key.ed25519, validate=True)
        public = Ed25519PublicKey.from_public_bytes(raw)
    except (binascii.Error, ValueError) as error:
        raise BadUsage(f"ed25519 is not base64 of 32 bytes, key id=`{key.id}`") from error
    return KnownKey(key=public, sender=_sender(entry), not_after_s=_seconds(key))


def _seconds(key: KeyEntry) -> int | None:
    if key.not_after is None:
        return None
    if key.not_after.tzinfo is None:
        raise BadUsage(f"not_after needs an offset, as in 2026-01-01T00:00:00Z, key id=`{key.id}`")
    return int(key.not_after.timestamp())


def _template(entry: PrincipalEntry) -> re.Pattern[str]:
    text = entry.agent_template or ""
    segments = text.split("/")
    if segments.count(_PLACE) != 1 or text.count("{") != 1 or not text.startswith("spiffe://"):
        raise BadUsage(
            "agent_template is a SPIFFE id with {agent} as one whole segment,"
            f" name=`{entry.name}`"
        )
    head, _, tail = text.partition(_PLACE)
    return re.compile(re.escape(head) + _AGENT_SEGMENT + re.escape(tail))


def _agent_of(hex_digits: str) -> str:
    try:
        return bytes.fromhex(hex_digits).decode()
    except UnicodeDecodeError as error:
        raise Unauthenticated("the SPIFFE id's agent segment is not UTF-8") from error
