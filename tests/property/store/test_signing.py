"""The fast signer returns what botocore's signer returns, and an independent check accepts it."""

import time
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from hypothesis import given
from hypothesis import strategies as st
from support.memory_bucket.server import SignedRequest, check_signature

from sluice_protocol.keys import digest_of
from sluice_store.s3.credentials import FrozenCredentials
from sluice_store.s3.exchange import S3Request, encode_checksum
from sluice_store.s3.settings import Addressing
from sluice_store.s3.signing import BucketAddress, sign

NOW_NS = 1_795_000_000 * 10**9


text = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1, max_size=40)
words = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=20)
endpoints = st.sampled_from(
    [
        "http://127.0.0.1:9000",
        "https://s3.eu-west-1.amazonaws.com",
        "https://storage.example:443",
        "http://storage.example:80",
        "https://storage.example:8443",
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[S3Request, BucketAddress, FrozenCredentials]:
    """Any request that the adapter sends, with any address and credentials."""
    body = draw(st.binary(max_size=64))
    headers = {"x-amz-checksum-sha256": encode_checksum(digest_of(body))}
    headers |= draw(st.sampled_from([{}, {"If-None-Match": "*"}, {"If-Match": '"tag  with gaps"'}]))
    query = draw(st.sampled_from([(), (("versionId", "a+b/c=d&e"),), (("versioning", ""),)]))
    request = S3Request(
        method=draw(st.sampled_from(["PUT", "GET", "HEAD", "DELETE"])),
        key=draw(text),
        headers=headers,
        query=query,
        sha256=digest_of(body),
    )
    address = BucketAddress(
        endpoint=draw(endpoints),
        region=draw(words),
        bucket=draw(words),
        addressing=draw(st.sampled_from(Addressing)),
    )
    return request, address, FrozenCredentials("AKIA", draw(words), draw(st.none() | words))


@given(st.one_of(text, st.text("agent=/%+ ~.-_0aZ\n", min_size=1)))
def test_a_target_is_encoded_as_by_quote(key: str) -> None:
    address = BucketAddress(
        endpoint="http://127.0.0.1:9000", region="r", bucket="b", addressing=Addressing.PATH
    )
    assert address.target_of(key) == f"/b/{quote(key, safe='/-_.~')}"


class _Reference(S3SigV4Auth):
    """botocore's signer, changed only to use the given digest of the body."""

    def payload(self, request: AWSRequest) -> str:
        return str(request.context["digest"])


@given(cases())
def test_sign_is_botocores_signature(
    case: tuple[S3Request, BucketAddress, FrozenCredentials],
) -> None:
    """Every header is the one that botocore computes in the same second."""
    request, address, credentials = case
    url = address.origin + address.target_of(request.key, request.query)
    for _ in range(20):  # the clock's second may change between the two
        ours = sign(request, url, address, credentials)
        reference = AWSRequest(method=request.method, url=url, headers=dict(request.headers))
        reference.context["digest"] = request.sha256
        _Reference(credentials, "s3", address.region).add_auth(reference)
        if ours["X-Amz-Date"] == reference.headers["X-Amz-Date"]:
            break
        time.sleep(0.001)  # one of them reads a clock that is a tick late
    assert ours == dict(reference.headers.items())


@given(cases())
def test_sign_is_accepted_by_an_independent_check(
    case: tuple[S3Request, BucketAddress, FrozenCredentials],
) -> None:
    """The check of the fake accepts a right signature and refuses a wrong one."""
    request, address, credentials = case
    url = urlsplit(address.origin + address.target_of(request.key, request.query))
    headers = sign(
        request,
        address.origin + address.target_of(request.key, request.query),
        address,
        credentials,
    )
    signed = SignedRequest(
        method=request.method,
        path=url.path,
        query=url.query,
        headers={**headers, "Host": address.host},
    )
    stamp = headers["X-Amz-Date"]
    now_ns = _seconds(stamp) * 10**9
    assert check_signature(signed, {"AKIA": credentials.secret_key}, now_ns) is None
    wrong = check_signature(signed, {"AKIA": credentials.secret_key + "x"}, now_ns)
    assert wrong == "SignatureDoesNotMatch"
    late = check_signature(signed, {"AKIA": credentials.secret_key}, now_ns + 901 * 10**9)
    assert late == "RequestTimeTooSkewed"


def _seconds(stamp: str) -> int:
    return int(datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp())
