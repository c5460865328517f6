"""Principals: who may send for which agents, and who sent a request.

The principals file is TOML; `principals_file` reads it.

    [[principals]]
    name = "host-1"
    roles = ["agent"]                       # "agent", "operator" or both
    agents = ["host-1"]                     # exact agent ids
    keys = [{ id = "k1", ed25519 = "…" }]   # base64 of the 32 raw bytes; several for a roll-over
    spiffe = "spiffe://td/agent/host-1"     # one exact URI SAN, or
    agent_template = "spiffe://td/agent/{agent}"

`{agent}` is one whole path segment: the lower-case hex of the agent id. Source: ADR 12.
    tokens = [{ id = "t1", sha256 = "…" }]  # `sluice token create`; for clients that cannot sign
    doors = ["otlp", "json"]                # which doors the principal may use
    forward = [{ id = "f1", shared_key = "…" }]   # keys of Fluent's handshake; optionally
                                            # `username` and `password`. Readable: ADR 21.

How a request is matched with a principal: `authentication`.
"""

import base64
import binascii
import datetime as dt
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sluice_doors.table import DoorName
from sluice_gateway.sender_keys import SenderKey
from sluice_protocol.errors import BadUsage, Unauthenticated
from sluice_protocol.request_identity import check_door_principal, is_door_agent
from sluice_protocol.signatures import KEY_ID_CHARS_MAX
from sluice_web.tokens import token_sha256

Role = Literal["agent", "operator"]
SHARED_KEY_CHARS_MIN: Final = 16
_AGENT_SEGMENT: Final = r"(?P<agent>(?:[0-9a-f]{2}){1,120})"
_PLACEHOLDER: Final = "{agent}"
_SHA256: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


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
    roles: tuple[Role, ...] = ("agent",)
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

    Attributes:
        principal: The name that the manifest records.
        agents: The agent ids that it may send for.
        operator: Whether it may read and resolve all conflicts.
        doors: The doors that it may use.
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

    Attributes:
        keys: Known keys by id.
        tokens: Known tokens by the hex of their sha256.
        forward: Known keys of Fluent's handshake by id.
        names: Senders by name.
        spiffe: Senders by exact SPIFFE id.
        templates: Patterns of SPIFFE ids with the agent in one segment, each with its roles.
    """

    keys: Mapping[str, KnownKey]
    tokens: Mapping[str, KnownToken]
    forward: Mapping[str, KnownForwardKey]
    names: Mapping[str, VerifiedSender]
    spiffe: Mapping[str, VerifiedSender]
    templates: tuple[SenderTemplate, ...]

    def key_of(self, key_id: str, now_s: int) -> KnownKey:
        """Return the key with this id.

        Raises:
            Unauthenticated: No principal has the key, or it has expired.
        """
        known = self.keys.get(key_id)
        if known is None:
            raise Unauthenticated("no principal has this key id")
        if known.not_after_s is not None and now_s > known.not_after_s:
            raise Unauthenticated("the key's not_after has passed")
        return known

    def token_sender(self, token: str, now_s: int) -> VerifiedSender:
        """Return the owner of a token.

        The lookup is by the digest of the token, so its time reveals nothing about known tokens.

        Raises:
            Unauthenticated: No principal has the token, or it has expired.
        """
        known = self.tokens.get(token_sha256(token))
        if known is None:
            raise Unauthenticated("no principal has this token")
        if known.not_after_s is not None and now_s > known.not_after_s:
            raise Unauthenticated("the token's not_after has passed")
        return known.sender

    def spiffe_sender(self, uri: str) -> VerifiedSender:
        """Return the sender with this SPIFFE id.

        Raises:
            Unauthenticated: No principal has it.
        """
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
    """Parse the text of a principals file.

    Raises:
        BadUsage: It is not TOML of this form, or two principals share a name, key id or SPIFFE id.
    """
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
