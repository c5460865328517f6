"""The methods of botocore's signer that the S3 adapter overrides are still the ones it calls.

That the signature is the same is tested in tests/property/store/test_signing.py; here a failure
names the method that botocore changed.
"""

import pytest
from botocore.auth import S3SigV4Auth
from botocore.credentials import Credentials
from support.private_api import expect_call, expect_limited, expect_name

from sluice_store.s3.signing import _KnownHashAuth, _Unsigned

USED_IN = "core/sluice_store/s3/signing.py"
SELF, VALUE = object(), object()
OVERRIDDEN = {
    "canonical_request": (VALUE,),
    "payload": (VALUE,),
    "headers_to_sign": (VALUE,),
    "canonical_headers": (VALUE,),
    "signed_headers": (VALUE,),
    "signature": (VALUE, VALUE),
}


def test_pyproject_limits_botocore_to_the_tested_versions() -> None:
    expect_limited("botocore", used_in=USED_IN)


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_method_still_exists_with_its_arguments(name: str) -> None:
    expect_name("botocore", S3SigV4Auth, name, used_in=USED_IN)
    method = getattr(S3SigV4Auth, name)
    expect_call("botocore", method, SELF, *OVERRIDDEN[name], used_in=USED_IN)


def test_add_auth_still_calls_every_override_and_reads_no_other_field() -> None:
    """The request stand-in has only the fields that the signer reads today."""
    called: list[str] = []

    class Recording(_KnownHashAuth):
        def __getattribute__(self, name: str) -> object:
            if name in OVERRIDDEN:
                called.append(name)
            return super().__getattribute__(name)

    request = _Unsigned(
        method="PUT",
        url="http://localhost:9000/bucket/key",
        headers={"x-amz-checksum-sha256": "abc"},
        context={
            "payload_sha256": "0" * 64,
            "host": "localhost:9000",
            "origin": "http://localhost:9000",
        },
    )
    try:
        Recording(Credentials("access", "secret", "token"), "s3", "us-east-1").add_auth(request)
    except AttributeError as error:
        pytest.fail(f"botocore's signer reads another field of the request ({error}): {USED_IN}")
    assert set(called) == set(OVERRIDDEN), (
        f"botocore's add_auth no longer calls {set(OVERRIDDEN) - set(called)}: change {USED_IN}"
    )
    assert {"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} <= request.headers.keys()
