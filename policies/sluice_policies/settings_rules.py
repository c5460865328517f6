"""What makes settings unusable: rules over values that are already well typed.

Each rule yields the path of the key it is about and what is wrong with it.
"""

import re
from collections.abc import Iterator
from typing import Final

from sluice_policies.settings import RoleName, Settings, Target

Complaint = tuple[tuple[str, ...], str]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IPV4: Final = re.compile(r"\d+\.\d+\.\d+\.\d+")
_RESERVED_STARTS: Final = ("xn--", "sthree-", "amzn-s3-demo-")
_RESERVED_ENDS: Final = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")
_PREFIX: Final = re.compile(r"(?:[A-Za-z0-9!_.'()=-]+/)*")
_PREFIX_BYTES_MAX: Final = 200
_ROLE: Final = re.compile(
    r"arn:(aws|aws-cn|aws-us-gov):iam::(\d{12}):role/(?:[\w+=,.@-]+/)*[\w+=,.@-]{1,64}"
)
_KMS: Final = re.compile(r"arn:(aws|aws-cn|aws-us-gov):kms:[a-z0-9-]+:\d{12}:key/[\w-]+")
_SQS: Final = re.compile(r"arn:(aws|aws-cn|aws-us-gov):sqs:[a-z0-9-]+:\d{12}:[\w.-]+")
_VPCE: Final = re.compile(r"vpce-[0-9a-f]{8,17}")
_USER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ABORT_DAYS_MAX: Final = 365
_LOCK_DAYS_MAX: Final = 36_500


def _bucket_name(settings: Settings) -> Iterator[Complaint]:
    name = settings.bucket.name
    reserved = name.startswith(_RESERVED_STARTS) or name.endswith(_RESERVED_ENDS)
    plain = _BUCKET.fullmatch(name) is not None and ".." not in name
    if not plain or _IPV4.fullmatch(name) is not None or reserved:
        rule = "3 to 63 of a-z, 0-9, '-' and '.', not an address, no reserved start or end"
        yield ("bucket", "name"), f"{name!r} is no name of a general-purpose bucket: {rule}"


def _account(settings: Settings) -> Iterator[Complaint]:
    if re.fullmatch(r"\d{12}", settings.bucket.account) is None:
        yield ("bucket", "account"), f"{settings.bucket.account!r} is not 12 digits"


def _prefix_form(path: tuple[str, ...], prefix: str) -> Iterator[Complaint]:
    if _PREFIX.fullmatch(prefix) is None or len(prefix.encode()) > _PREFIX_BYTES_MAX:
        rule = (
            f"empty, or plain segments each ending in '/', at most {_PREFIX_BYTES_MAX} bytes,"
            " without '*', '?' and '$', which policies would read as patterns"
        )
        yield path, f"{prefix!r} is no prefix: {rule}"


def _prefixes(settings: Settings) -> Iterator[Complaint]:
    bucket = settings.bucket
    yield from _prefix_form(("bucket", "prefix"), bucket.prefix)
    mine = [bucket.prefix, *bucket.neighbours]
    for index, neighbour in enumerate(bucket.neighbours, start=1):
        yield from _prefix_form(("bucket", "neighbours"), neighbour)
        for other in mine[:index]:
            if neighbour.startswith(other) or other.startswith(neighbour):
                short, long = sorted((other, neighbour), key=len)
                text = f"{short!r} swallows {long!r}: rules for one would fall on the other"
                yield ("bucket", "neighbours"), f"prefix {text}; keep them apart"


def _roles(settings: Settings) -> Iterator[Complaint]:
    seen: dict[str, RoleName] = {}
    for name in RoleName:
        path = ("roles", name.value, "arn")
        arn = settings.role(name).arn
        found = _ROLE.fullmatch(arn)
        if found is None:
            yield path, f"{arn!r} is not the ARN of an IAM role; wildcards and sessions are not"
        elif found[1] != settings.bucket.partition or found[2] != settings.bucket.account:
            yield path, f"{arn!r} is not in the bucket's account and partition"
        if arn in seen:
            yield path, f"roles {seen[arn].value!r} and {name.value!r} have one ARN: part them"
        seen.setdefault(arn, name)


def _users(settings: Settings) -> Iterator[Complaint]:
    seen: dict[str, RoleName] = {}
    for name in RoleName:
        path, user = ("roles", name.value, "user"), settings.user(name)
        if _USER.fullmatch(user) is None:
            yield path, f"{user!r} is no access key name: 1 to 64 of A-Z, a-z, 0-9, '_' and '-'"
        if user in seen:
            yield path, f"roles {seen[user].value!r} and {name.value!r} have one user: part them"
        seen.setdefault(user, name)


def _encryption(settings: Settings) -> Iterator[Complaint]:
    wanted, key = settings.encryption.mode == "sse-kms", settings.encryption.kms_key
    if wanted and _KMS.fullmatch(key) is None:
        yield ("encryption", "kms_key"), f"{key!r} is not the ARN of a key; sse-kms needs one"
    if not wanted and key:
        yield ("encryption", "kms_key"), "a key is set, but mode is not sse-kms"


def _network(settings: Settings) -> Iterator[Complaint]:
    endpoint = settings.network.vpc_endpoint
    if endpoint and _VPCE.fullmatch(endpoint) is None:
        yield ("network", "vpc_endpoint"), f"{endpoint!r} is not an endpoint id, vpce-…"
    if not settings.network.require_tls and Target.AWS in settings.targets:
        yield ("network", "require_tls"), "only versitygw may go without TLS; take aws from targets"


def _clearing(settings: Settings) -> Iterator[Complaint]:
    days = settings.lifecycle.abort_multipart_days
    if not 1 <= days <= _ABORT_DAYS_MAX:
        yield ("lifecycle", "abort_multipart_days"), f"{days} is not 1 to {_ABORT_DAYS_MAX} days"
    lock = settings.object_lock
    if lock is not None and not 1 <= lock.days <= _LOCK_DAYS_MAX:
        yield ("object_lock", "days"), f"{lock.days} is not 1 to {_LOCK_DAYS_MAX} days"
    queue = settings.notifications.queue_arn
    if queue and _SQS.fullmatch(queue) is None:
        yield ("notifications", "queue_arn"), f"{queue!r} is not the ARN of a queue"


def _targets(settings: Settings) -> Iterator[Complaint]:
    if not settings.targets or len(set(settings.targets)) != len(settings.targets):
        yield ("targets",), "name each target once, at least one"


def complaints(settings: Settings) -> Iterator[Complaint]:
    """Yields every path and reason that makes the settings unusable, worst first."""
    rules = (_bucket_name, _account, _prefixes, _roles, _users)
    for rule in (*rules, _encryption, _network, _clearing, _targets):
        yield from rule(settings)
