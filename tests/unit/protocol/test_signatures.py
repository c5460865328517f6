"""The signature profile: the vectors of RFC 9421, a second implementation, and every refusal."""

import base64
import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    algorithms,
)
from msgspec.structs import replace
from support.gateway import public_half

from sluice_protocol.errors import DigestMismatch, Unauthenticated
from sluice_protocol.keys import digest_of
from sluice_protocol.signatures import (
    BODY_COMPONENTS,
    SignedView,
    content_digest_field,
    parse_content_digest,
    read_signature,
    sign_request,
    signature_base,
    verify_signature,
    view_request,
)

RFC_PRIVATE_PEM = b"""-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF
-----END PRIVATE KEY-----
"""
RFC_SIGNATURE = (
    "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
)
RFC_NAMES = ("date", "@method", "@path", "@authority", "content-type", "content-length")
RFC_PARAMS = (
    '("date" "@method" "@path" "@authority" "content-type" "content-length")'
    ';created=1618884473;keyid="test-key-ed25519"'
)
NOW_S = 1_800_000_000
BODY = b"frame bytes"


def rfc_key() -> Ed25519PrivateKey:
    key = load_pem_private_key(RFC_PRIVATE_PEM, password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


def rfc_request() -> SignedView:
    return view_request(
        method="POST",
        authority="example.com",
        path="/foo",
        query="param=Value&Pet=dog",
        headers=[
            ("Date", "Tue, 20 Apr 2021 02:07:55 GMT"),
            ("Content-Type", "application/json"),
            ("Content-Length", "18"),
        ],
    )


def headers(**extra: str) -> dict[str, str]:
    fields = {
        "Content-Digest": content_digest_field(digest_of(BODY)),
        "Content-Length": str(len(BODY)),
        "Content-Type": "application/vnd.lightmetrics.batch",
    }
    return fields | {name.replace("_", "-"): value for name, value in extra.items()}


def signed(key: Ed25519PrivateKey, fields: dict[str, str], **changed: Any) -> SignedView:
    spoken: dict[str, Any] = {
        "method": "POST",
        "authority": "gw.example:8080",
        "path": "/v1/batches",
        "query": "",
        "created_s": NOW_S,
        "key_id": "host-1",
    } | changed
    signature = sign_request(key=key, headers=fields, **spoken)
    return view_request(
        method=spoken["method"],
        authority=spoken["authority"],
        path=spoken["path"],
        query=spoken["query"],
        headers=[*fields.items(), *signature.items()],
    )


def with_field(view: SignedView, name: str, value: str | None) -> SignedView:
    fields = {known: text for known, text in view.headers.items() if known != name}
    return replace(view, headers=fields if value is None else fields | {name: value})


def test_signature_base_of_rfc_9421_b26() -> None:
    """The base of the RFC's Ed25519 example is equal byte for byte."""
    assert signature_base(rfc_request(), RFC_NAMES, RFC_PARAMS).decode() == (
        '"date": Tue, 20 Apr 2021 02:07:55 GMT\n'
        '"@method": POST\n'
        '"@path": /foo\n'
        '"@authority": example.com\n'
        '"content-type": application/json\n'
        '"content-length": 18\n'
        f'"@signature-params": {RFC_PARAMS}'
    )


def test_signature_of_rfc_9421_b26() -> None:
    """Ed25519 is deterministic: signing the RFC's base results in the RFC's signature."""
    base = signature_base(rfc_request(), RFC_NAMES, RFC_PARAMS)
    assert base64.b64encode(rfc_key().sign(base)).decode() == RFC_SIGNATURE


@pytest.mark.parametrize("extra", [{}, {"Sluice_Retry": "1"}, {"Sluice_High_Water": "7"}])
def test_signature_round_trip(extra: dict[str, str]) -> None:
    key = Ed25519PrivateKey.generate()
    claim = read_signature(signed(key, headers(**extra)), now_s=NOW_S + 299)
    verify_signature(claim, public_half(key))
    assert (claim.key_id, claim.created_s) == ("host-1", NOW_S)


def test_signature_without_body_covers_the_query() -> None:
    """A GET is signed over its query: another query is another request."""
    key = Ed25519PrivateKey.generate()
    view = signed(key, {}, method="GET", path="/v1/conflicts", query="after=a")
    verify_signature(read_signature(view, now_s=NOW_S), public_half(key))
    with pytest.raises(Unauthenticated):
        verify_signature(
            read_signature(replace(view, query="?after=b"), now_s=NOW_S), public_half(key)
        )


def test_signature_of_another_key_is_rejected() -> None:
    claim = read_signature(signed(Ed25519PrivateKey.generate(), headers()), now_s=NOW_S)
    with pytest.raises(Unauthenticated):
        verify_signature(claim, public_half(Ed25519PrivateKey.generate()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "PUT"),
        ("authority", "other.example:8080"),
        ("path", "/v1/batches/"),
        ("path", "/v1/%62atches"),
        ("path", "/v1/b\udcffatches"),
    ],
)
def test_signature_covers_the_request_line(field: str, value: str) -> None:
    """Method, authority and path as sent are covered: path tricks change the base."""
    key = Ed25519PrivateKey.generate()
    view = replace(signed(key, headers()), **{field: value})
    with pytest.raises(Unauthenticated):
        verify_signature(read_signature(view, now_s=NOW_S), public_half(key))


@pytest.mark.parametrize("name", BODY_COMPONENTS[3:])
def test_signature_covers_the_body_fields(name: str) -> None:
    key = Ed25519PrivateKey.generate()
    view = with_field(signed(key, headers()), name, "other")
    with pytest.raises(Unauthenticated):
        verify_signature(read_signature(view, now_s=NOW_S), public_half(key))


def test_signature_must_cover_every_present_sluice_header() -> None:
    """A Sluice-Retry field that was added in transit is rejected."""
    view = with_field(signed(Ed25519PrivateKey.generate(), headers()), "sluice-retry", "1")
    with pytest.raises(Unauthenticated, match="components"):
        read_signature(view, now_s=NOW_S)


@pytest.mark.parametrize("now_s", [NOW_S - 31, NOW_S + 301])
def test_signature_freshness(now_s: int) -> None:
    """A signature older than 300 s is stale; one more than 30 s ahead is in the future."""
    with pytest.raises(Unauthenticated):
        read_signature(signed(Ed25519PrivateKey.generate(), headers()), now_s=now_s)


def test_each_request_is_judged_by_its_own_time() -> None:
    """Requests that differ only in their time are parsed once, but one of them may be stale."""
    key = Ed25519PrivateKey.generate()
    for age_s in (0, 299, 301, 0, -31):
        view = signed(key, headers(), created_s=NOW_S - age_s)
        if -30 <= age_s <= 300:
            claim = read_signature(view, now_s=NOW_S)
            verify_signature(claim, public_half(key))
            assert claim.created_s == NOW_S - age_s
        else:
            with pytest.raises(Unauthenticated, match=r"stale|future"):
                read_signature(view, now_s=NOW_S)


def test_parameters_of_one_sender_do_not_apply_to_another() -> None:
    """The key id is that of the request, whatever was parsed before."""
    key = Ed25519PrivateKey.generate()
    for key_id in ("host-1", "host-2", "host-1"):
        claim = read_signature(signed(key, headers(), key_id=key_id), now_s=NOW_S)
        assert claim.key_id == key_id
        verify_signature(claim, public_half(key))


OTHER_VALUES = ["", "a=:QUJD:, b=:QUJD:", "sluice=QUJD", "other=:QUJD:", "sluice=:A:"]
GOOD_PARAMS = (
    '("@method" "@authority" "@path" "content-digest" "content-length" "content-type")'
    f';created={NOW_S};keyid="k";alg="ed25519";tag="sluice"'
)


OTHER_PARAMS = [
    "",
    GOOD_PARAMS,
    f"a={GOOD_PARAMS}, b={GOOD_PARAMS}",
    f"a={GOOD_PARAMS};x=1",
    f"a={GOOD_PARAMS};created={NOW_S}",
    f"a={GOOD_PARAMS}".replace("ed25519", "rsa-pss-sha512"),
    f"a={GOOD_PARAMS}".replace('tag="sluice"', 'tag="other"'),
    f"a={GOOD_PARAMS}".replace(f";created={NOW_S}", ""),
    f"a={GOOD_PARAMS}".replace('keyid="k"', 'keyid=""'),
    f"a={GOOD_PARAMS}".replace(' "content-digest"', ""),
    f"a={GOOD_PARAMS}".replace('"@path"', '"@path" "@path"'),
    f"a={GOOD_PARAMS}".replace('"@path"', '"@path";req'),
    f"a={GOOD_PARAMS}".replace('"@path"', '"@path" "x-forwarded-for"'),
    f"a={GOOD_PARAMS}".replace(str(NOW_S), "9" * 40),
    f"a={GOOD_PARAMS};expires={NOW_S - 31}",
    f"a={GOOD_PARAMS}".replace('keyid="k"', 'keyid="k;created=1"'),
    f"a={GOOD_PARAMS}".replace(f"created={NOW_S}", "created=0").replace("sluice", "s;created=1"),
    "a=" + "(" * 3000,
]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("signature-input", one) for one in OTHER_PARAMS),
        *(("signature", one) for one in OTHER_VALUES),
    ],
)
def test_anything_but_one_signature_of_this_profile_is_rejected(field: str, text: str) -> None:
    """The value is one byte sequence under the label of Signature-Input."""
    view = with_field(signed(Ed25519PrivateKey.generate(), headers()), field, text)
    with pytest.raises(Unauthenticated):
        read_signature(view, now_s=NOW_S)


def test_repeated_fields_are_rejected() -> None:
    """Two lines of one covered field could be read in two ways."""
    with pytest.raises(Unauthenticated, match="more than once"):
        view_request(
            method="POST",
            authority="a",
            path="/",
            query="",
            headers=[("Content-Digest", "a"), ("content-digest", "b")],
        )


def test_default_ports_are_omitted() -> None:
    """RFC 9421 section 2.2.3: lower case, no default port."""
    view = replace(rfc_request(), authority="EXAMPLE.com:443")
    assert signature_base(view, ["@authority"], "()").startswith(b'"@authority": example.com\n')


class _Keys(HTTPSignatureKeyResolver):
    """A resolver that returns the one key to the second implementation."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    def resolve_private_key(self, key_id: str) -> Ed25519PrivateKey:
        return self._key

    def resolve_public_key(self, key_id: str) -> Any:
        return self._key.public_key()


def message(fields: dict[str, str]) -> Any:
    return SimpleNamespace(
        method="POST", url="http://gw.example:8080/v1/batches", headers=dict(fields)
    )


def test_second_implementation_verifies_our_signatures() -> None:
    """`http-message-signatures` accepts what the profile signs."""
    key = Ed25519PrivateKey.generate()
    now_s = int(dt.datetime.now(tz=dt.UTC).timestamp())
    fields = headers()
    fields |= sign_request(
        key=key,
        key_id="host-1",
        method="POST",
        authority="gw.example:8080",
        path="/v1/batches",
        headers=fields,
        created_s=now_s,
    )
    verifier = HTTPMessageVerifier(signature_algorithm=algorithms.ED25519, key_resolver=_Keys(key))
    results = verifier.verify(message(fields), expect_tag="sluice")
    assert set(results[0].covered_components) >= {f'"{name}"' for name in BODY_COMPONENTS}


def test_we_verify_signatures_of_the_second_implementation() -> None:
    """The profile accepts what `http-message-signatures` signs over the same components."""
    key = Ed25519PrivateKey.generate()
    request = message(headers())
    signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=_Keys(key))
    signer.sign(
        request,
        key_id="host-1",
        covered_component_ids=BODY_COMPONENTS,
        tag="sluice",
        created=dt.datetime.fromtimestamp(NOW_S, tz=dt.UTC),
        label="other",
        use_existing_digest=True,
    )
    view = view_request(
        method="POST",
        authority="gw.example:8080",
        path="/v1/batches",
        query="",
        headers=request.headers.items(),
    )
    verify_signature(read_signature(view, now_s=NOW_S), public_half(key))


def test_content_digest_round_trip() -> None:
    """RFC 9530: sha-256 as a byte sequence, found next to other algorithms."""
    digest = digest_of(BODY)
    assert parse_content_digest(content_digest_field(digest)) == digest
    assert parse_content_digest(f"sha-512=:QUJD:, {content_digest_field(digest)}") == digest


@pytest.mark.parametrize("text", ["", "sha-512=:QUJD:", "sha-256=:QUJD:", "sha-256=abc", "x"])
def test_content_digest_of_another_form_is_rejected(text: str) -> None:
    with pytest.raises(DigestMismatch):
        parse_content_digest(text)


def test_two_content_digests_are_rejected() -> None:
    """Two sha-256 members could be read in two ways."""
    one = content_digest_field(digest_of(BODY))
    with pytest.raises(DigestMismatch):
        parse_content_digest(f"{one}, {one}")
