"""Request signatures: the one profile of RFC 9421 that sluice signs and accepts, as pure functions.

The profile: exactly one signature, Ed25519, `tag="sluice"`, with `created`, `keyid` and `alg`.
A request with a body covers `@method`, `@authority`, `@path`, `content-digest`, `content-length`
and `content-type`. A request without a body covers `@method`, `@authority`, `@path` and `@query`.
Both cover every sluice header that is present. A verifier must also compare Content-Digest
(RFC 9530) with the body that it read: the signature covers the header, not the bytes.

A replay inside `SIGNATURE_AGE_S_MAX` is harmless by design: acceptance is idempotent by identity
and digest.

Source: RFC 9421 sections 2 and 3, RFC 9530 section 2, ADR 12.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Protocol

import msgspec

from sluice_protocol.errors import DigestMismatch, Unauthenticated
from sluice_protocol.units import Digest
from sluice_protocol.upload_http import SLUICE_HEADERS

SIGNATURE_AGE_S_MAX: Final = 300
SIGNATURE_SKEW_S_MAX: Final = 30
"""A signature may be this far in the future: the signer's clock may run ahead."""
SIGNATURE_TAG: Final = "sluice"
SIGNATURE_ALG: Final = "ed25519"
SIGNATURE_HEADER_CHARS_MAX: Final = 2048
KEY_ID_CHARS_MAX: Final = 256

BODY_COMPONENTS: Final = (
    *("@method", "@authority", "@path"),
    *("content-digest", "content-length", "content-type"),
)
BODYLESS_COMPONENTS: Final = ("@method", "@authority", "@path", "@query")

_LABEL: Final = "sluice"
_INPUT: Final = re.compile(
    r"(?P<label>[a-z*][a-z0-9_.*-]*)="
    r'(?P<params>\((?P<names>"[a-z@-]+"(?: "[a-z@-]+")*)\)(?P<tail>(?:;[a-z]+=[^;,]+)*))'
)
_SIGNATURE: Final = re.compile(r"(?P<label>[a-z*][a-z0-9_.*-]*)=:(?P<value>[A-Za-z0-9+/]+={0,2}):")
_PARAMETER: Final = re.compile(
    r";(?:(?P<number>created|expires)=(?P<integer>[0-9]{1,15})|"
    r'(?P<name>keyid|alg|tag|nonce)="(?P<text>[ !#-\[\]-~]*)")'
)
_CREATED: Final = re.compile(r";created=(?P<integer>[0-9]{1,15})(?=;|\Z)")
_DEFAULT_PORT: Final = re.compile(r":(?:80|443)?\Z")
_FORMS_MAX: Final = 1024
"""Forms of Signature-Input that are remembered; each has at most `SIGNATURE_HEADER_CHARS_MAX`."""
_HOSTS_MAX: Final = 64
_SHA256_MEMBER: Final = re.compile(
    r"(?:^|,)[ \t]*sha-256=:(?P<value>[A-Za-z0-9+/]{43}=):[ \t]*(?=,|$)"
)


class SignedView(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one request that a signature can cover.

    `method` is in upper case. `authority` and `path` are as sent, with their percent-encoding.
    `query` has its leading `?`, and is a lone `?` when there is none. Field names are in lower
    case, each once.
    """

    method: str
    authority: str
    path: str
    query: str = "?"
    headers: Mapping[str, str]


class SignatureClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A well-formed, fresh signature that has not been checked with a key yet.

    A POST that does not cover Content-Digest is not signed. `created_s` is in Unix seconds.
    `signature` has 64 bytes, and `base` is what was signed.
    """

    key_id: str
    created_s: int
    covers_body: bool
    signature: bytes
    base: bytes


class _InputForm(msgspec.Struct, frozen=True, kw_only=True):
    """What the Signature-Input fields of one sender have in common: all but the creation time.

    `names` are the covered components. In `fields`, `created` is 0.
    """

    label: str
    names: tuple[str, ...]
    fields: Mapping[str, str]


def content_digest_field(digest: Digest) -> str:
    """Return the Content-Digest field value of a sha256 (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"


def parse_content_digest(text: str) -> Digest:
    """Return the sha-256 of a Content-Digest field; other algorithms are ignored."""
    found = _SHA256_MEMBER.findall(text)
    if len(found) != 1:
        raise DigestMismatch("exactly one sha-256=:<base64>: in Content-Digest", text[:128])
    return Digest(base64.b64decode(found[0]).hex())


def view_request(
    *, method: str, authority: str, path: str, query: str, headers: Iterable[tuple[str, str]]
) -> SignedView:
    """Return the view of a request as it was received.

    `path` and `query` are raw, without `?`. Field names may be in any case. A field that the
    profile reads may occur once only.
    """
    seen: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in seen and lower in _READ_FIELDS:
            raise Unauthenticated(f"{lower} was sent more than once")
        seen[lower] = value.strip()
    return SignedView(
        method=method, authority=authority, path=path, query=f"?{query}", headers=seen
    )


_READ_FIELDS: Final = frozenset(
    (*BODY_COMPONENTS, *SLUICE_HEADERS, "signature", "signature-input", "host")
)


class PrivateKey(Protocol):
    """A private key of Ed25519."""

    def sign(self, data: bytes, /) -> bytes:
        """Return the 64 bytes of the signature."""


def sign_request(  # noqa: PLR0913 - one keyword for each signed part
    *,
    key: PrivateKey,
    key_id: str,
    method: str,
    authority: str,
    path: str,
    headers: Mapping[str, str],
    created_s: int,
    query: str = "",
) -> dict[str, str]:
    """Sign a request by the profile.

    The key id is printable ASCII without quote and backslash. Authority, path and headers are those
    that will be sent. With `content-digest` the request has a body, and `content-length` and
    `content-type` are required too. `created_s` is the signer's clock in Unix seconds. The raw
    `query`, without `?`, is covered only when there is no body. Return the fields `Signature-Input`
    and `Signature`.
    """
    view = view_request(
        method=method, authority=authority, path=path, query=query, headers=headers.items()
    )
    names = _components_for(view)
    params = (
        f"{_inner_list(names)};created={created_s};"
        f'keyid="{key_id}";alg="{SIGNATURE_ALG}";tag="{SIGNATURE_TAG}"'
    )
    value = base64.b64encode(key.sign(signature_base(view, names, params))).decode()
    return {"Signature-Input": f"{_LABEL}={params}", "Signature": f"{_LABEL}=:{value}:"}


def signature_base(view: SignedView, names: Sequence[str], params: str) -> bytes:
    """Return the bytes that are signed (RFC 9421 section 2.5)."""
    values = {
        **view.headers,
        "@method": view.method,
        "@authority": normal_authority(view.authority),
        "@path": view.path,
        "@query": view.query,
    }
    try:
        lines = [f'"{name}": {values[name]}' for name in names]
    except KeyError as error:
        raise Unauthenticated(f"the field {error.args[0]} is missing") from error
    try:
        return "\n".join([*lines, f'"@signature-params": {params}']).encode("ascii")
    except UnicodeEncodeError as error:
        raise Unauthenticated("a covered component is not ASCII") from error


def read_signature(view: SignedView, *, now_s: int) -> SignatureClaim:
    """Read the one signature of a request and check it with the profile and the clock.

    Raises:
        Unauthenticated: There is no signature or more than one; it has another profile, or covers
            too few or too many components; or it is stale or in the future.
    """
    text = _field(view, "signature-input")
    form, created = _parse_input(text)
    names, expected = form.names, _components_for(view)
    if names != expected and sorted(names) != sorted(expected):
        raise Unauthenticated("the signature does not cover exactly the components of the profile")
    if form.fields.get("alg") != SIGNATURE_ALG or form.fields.get("tag") != SIGNATURE_TAG:
        raise Unauthenticated("alg is not ed25519 or tag is not sluice")
    created_s = _check_times(created, form.fields, now_s)
    key_id = form.fields.get("keyid", "")
    if not 1 <= len(key_id) <= KEY_ID_CHARS_MAX:
        raise Unauthenticated("keyid is missing or too long")
    return SignatureClaim(
        key_id=key_id,
        created_s=created_s,
        covers_body="content-digest" in names,
        signature=_parse_signature(view, form.label),
        base=signature_base(view, names, text[len(form.label) + 1 :]),
    )


class PublicKey(Protocol):
    """A public key of Ed25519."""

    def has_signed(self, data: bytes, signature: bytes) -> bool:
        """Return whether the private key of this one made the signature."""


def verify_signature(claim: SignatureClaim, key: PublicKey) -> None:
    """Verify the claim with a key."""
    if not key.has_signed(claim.base, claim.signature):
        raise Unauthenticated("the signature does not verify")


def _components_for(view: SignedView) -> tuple[str, ...]:
    required = BODY_COMPONENTS if "content-digest" in view.headers else BODYLESS_COMPONENTS
    return required + tuple([name for name in SLUICE_HEADERS if name in view.headers])


def _inner_list(names: Iterable[str]) -> str:
    return "(" + " ".join(f'"{name}"' for name in names) + ")"


@lru_cache(maxsize=_HOSTS_MAX)
def normal_authority(authority: str) -> str:
    """Return an authority in lower case and without a default port (RFC 9421 section 2.2.3)."""
    return _DEFAULT_PORT.sub("", authority.lower())


def _field(view: SignedView, name: str) -> str:
    value = view.headers.get(name)
    if value is None:
        raise Unauthenticated(f"the field {name} is missing")
    return value


def _parse_input(text: str) -> tuple[_InputForm, str | None]:
    """Return the form of a Signature-Input field, and its creation time where it has one."""
    if len(text) > SIGNATURE_HEADER_CHARS_MAX:
        raise Unauthenticated("Signature-Input is too long")
    created = _CREATED.search(text)
    if created is None:
        return _parse_form(text), None
    start, end = created.span("integer")
    return _parse_form(f"{text[:start]}0{text[end:]}"), created["integer"]


@lru_cache(maxsize=_FORMS_MAX)  # a refusal is an exception, which is not remembered
def _parse_form(text: str) -> _InputForm:
    found = _INPUT.fullmatch(text)
    if found is None:
        raise Unauthenticated("Signature-Input is not exactly one signature in canonical form")
    names = found["names"].replace('"', "").split(" ")
    return _InputForm(
        label=found["label"], names=tuple(names), fields=_parse_parameters(found["tail"])
    )


def _parse_parameters(tail: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    end = 0
    for found in _PARAMETER.finditer(tail):
        name = found["number"] or found["name"]
        if found.start() != end or name in fields:
            break
        fields[name] = found["integer"] or found["text"] or ""
        end = found.end()
    if end != len(tail):
        raise Unauthenticated("Signature-Input has a parameter that is not in the profile")
    return fields


def _check_times(created: str | None, fields: Mapping[str, str], now_s: int) -> int:
    if created is None:
        raise Unauthenticated("created is missing")
    created_s = int(created)
    if created_s > now_s + SIGNATURE_SKEW_S_MAX:
        raise Unauthenticated("created is in the future: set the signer's clock")
    expires_s = int(fields.get("expires", now_s))
    if created_s < now_s - SIGNATURE_AGE_S_MAX or expires_s < now_s - SIGNATURE_SKEW_S_MAX:
        raise Unauthenticated("the signature is stale: set the signer's clock and sign again")
    return created_s


def _parse_signature(view: SignedView, label: str) -> bytes:
    text = _field(view, "signature")
    found = _SIGNATURE.fullmatch(text) if len(text) <= SIGNATURE_HEADER_CHARS_MAX else None
    if found is None or found["label"] != label:
        raise Unauthenticated("Signature is not exactly one value under Signature-Input's label")
    try:
        return base64.b64decode(found["value"])  # the pattern admits no other characters
    except binascii.Error as error:
        raise Unauthenticated("Signature is not base64") from error
