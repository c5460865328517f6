"""The conformance suite over each store, and the known deviations of each store from it.

Also here: a PUT whose second half arrives late, to measure what Last-Modified means on a server.

The tests assert every line of the table. A server that no longer deviates fails them too, so that
the table stays correct. `docs/store.md` contains it.
"""

import http.client
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from support.store_versitygw import ACCESS, SECRET

from sluice_protocol.units import NS_PER_S
from sluice_store.checks import Nonconforming
from sluice_store.conformance import Check
from sluice_store.doctor import DoctorResult
from sluice_store.port import ObjectStore

DELAY_S = 3.0
BODY = b"x" * 65536


def put_slowly(endpoint: str, bucket: str, key: str) -> tuple[int, int]:
    """Return when the last byte was sent, and when the server responded, Unix ns."""
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    url = urlsplit(client.generate_presigned_url("put_object", {"Bucket": bucket, "Key": key}))
    wire = http.client.HTTPConnection(url.netloc, timeout=30)
    try:
        wire.putrequest("PUT", f"{url.path}?{url.query}")
        wire.putheader("Content-Length", str(len(BODY)))
        wire.endheaders()
        wire.send(BODY[:32768])
        time.sleep(DELAY_S)
        wire.send(BODY[32768:])
        sent_ns = time.time_ns()
        answer = wire.getresponse()
        answer.read()
        assert answer.status == http.client.OK, answer.status
        return sent_ns, time.time_ns()
    finally:
        wire.close()


def assert_dated_when_complete(last_modified_ns: int, sent_ns: int, responded_ns: int) -> None:
    """Assert that the object is dated by its application, to the second, not by its arrival."""
    assert sent_ns // NS_PER_S * NS_PER_S <= last_modified_ns <= responded_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A promise that a server does not keep.

    Attributes:
        check: The conformance check that fails.
        promise: The promise in the failure.
        seen: Text in the failure's `seen`.
        effect: The consequence for sluice.
        always: Whether it fails in every run; a race fails only sometimes.
    """

    check: str
    promise: str
    seen: str
    effect: str
    always: bool = True


LOCAL: Final = (
    Deviation(
        check="check_key_below_key",
        promise="a key may be below another key",
        seen="StoreMisconfigured",
        effect="none: no key of the layout is the folder of another",
    ),
)

VERSITYGW: Final = (
    Deviation(
        check="check_key_below_key",
        promise="a key may be below another key",
        seen="ObjectParentIsFile",
        effect="none: no key of the layout is the folder of another",
    ),
)

MOTO: Final = (
    Deviation(
        check="check_head_reports_checksum",
        promise="a HEAD reports the verified sha256",
        seen="None",
        effect="every existing blob is read and hashed, because a HEAD does not prove its bytes",
    ),
    Deviation(
        check="check_wrong_checksum",
        promise="a wrong checksum is refused",
        seen="Applied",
        effect=(
            "a body that was corrupted in transit would be stored: never use it as an authority"
        ),
    ),
    Deviation(
        check="check_counter",
        promise="no increment is lost or applied twice",
        seen="",
        effect="its check and its write are not under one lock: never use it as an authority",
        always=False,
    ),
    Deviation(
        check="check_race_replace",
        promise="exactly one of the racing conditional writes wins",
        seen="",
        effect="as above",
        always=False,
    ),
    Deviation(
        check="check_race_create",
        promise="exactly one of the racing conditional writes wins",
        seen="",
        effect="as above",
        always=False,
    ),
)

KNOWN: Final[dict[str, tuple[Deviation, ...]]] = {
    "local": LOCAL,
    "memory": (),
    "memory over HTTP": (),
    "moto": MOTO,
    "versitygw": VERSITYGW,
}
"""Deviations by server, of the versions in `docs/store.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """What the doctor reports of a server.

    Attributes:
        always: The probes that fail in every run.
        sometimes: The probes of races that fail in some.
    """

    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()


DOCTOR: Final = {
    "moto": Broken(
        always=frozenset({"checksum", "head-checksum"}),
        sometimes=frozenset({"race-create", "race-replace"}),
    ),
    "versitygw": Broken(always=frozenset({"marker-create"})),
}
"""The probes of `sluice doctor` that report a broken promise of a bucket with versioning."""

MOTO_ALLOWS: Final = frozenset(
    {
        *("put-without-header", "console-overwrite-approval"),
        *("overwrite-registration", "overwrite-journal"),
        *("put-other-encryption", "put-unnamed-key", "gc-lock-blob"),
        *("copy-into-accepted", "copy-into-blobs", "copy-into-journals"),
    }
)
"""The probes of `sluice policies verify` that only the bucket policy denies.

moto evaluates no condition: under the bucket policy it denies every request, with a response that
is not the store's. So it is tested with the policies of the roles alone.
"""

MOTO_DEFAULT_RETENTION: Final = "MissingUploadObjectWithObjectLockHeaders"
"""The error of a PUT without `x-amz-sdk-checksum-algorithm` in a bucket with default retention.

S3 accepts any `x-amz-checksum-` header there, and the adapter sends one.
"""


def assert_doctor(server: str, result: DoctorResult) -> None:
    """Check that the doctor found exactly the known deviations of a server."""
    broken = {one.probe for one in result.findings if not one.kept}
    known = DOCTOR[server]
    assert known.always <= broken <= known.always | known.sometimes


async def assert_conforms(server: str, check: Check, store: ObjectStore, place: str) -> None:
    """Run the check; where the table has a deviation, exactly that one must occur."""
    known = next((one for one in KNOWN.get(server, ()) if one.check == check.__name__), None)
    if known is None:
        await check(store, place)
        return
    failure: Nonconforming | None = None
    try:
        await check(store, place)
    except Nonconforming as error:
        failure = error
    if failure is None:
        assert not known.always, f"{server} deviates no longer: take the line out of the table"
        return
    assert failure.promise == known.promise
    assert known.seen in failure.seen
