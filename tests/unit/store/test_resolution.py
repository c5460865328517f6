"""The rules for the result of an exchange with a store."""

import pytest

from sluice_protocol.exchange_verdicts import (
    ConditionFailed,
    ExchangeResult,
    Foreign,
    NoResponse,
    NoSuchObject,
    NotSent,
    PastEnd,
    RefusalReason,
    RequestRefused,
    Responded,
    Succeeded,
    Uncertain,
    WriteCondition,
    resolve_delete,
    resolve_read,
    resolve_write,
)
from sluice_protocol.outcomes import UnknownReason

LOST = NoResponse(reason=UnknownReason.RESET, detail="reset")
NOT_SENT = NotSent(detail="refused")
FOREIGN = Foreign(detail="a page of HTML")
ABSENT, MATCH, PLAIN = WriteCondition.IF_ABSENT, WriteCondition.IF_MATCH, WriteCondition.NONE
CONFLICT = Uncertain(reason=UnknownReason.CONFLICT)
SLOW = Uncertain(reason=UnknownReason.TIMEOUT)
BROKEN = Uncertain(reason=UnknownReason.SERVER_ERROR)


def _refused(refusal: RefusalReason) -> RequestRefused:
    return RequestRefused(refusal=refusal)


@pytest.mark.parametrize(
    ("condition", "seen", "verdict"),
    [
        (ABSENT, Responded(status=200), Succeeded()),
        (ABSENT, Responded(status=412, code="PreconditionFailed"), ConditionFailed()),
        (MATCH, Responded(status=412, code="PreconditionFailed"), ConditionFailed()),
        (PLAIN, Responded(status=412), _refused(RefusalReason.REJECTED)),
        (MATCH, Responded(status=404, code="NoSuchKey"), ConditionFailed()),
        (ABSENT, FOREIGN, Uncertain(reason=UnknownReason.FOREIGN)),
        (MATCH, FOREIGN, Uncertain(reason=UnknownReason.FOREIGN)),
        (PLAIN, FOREIGN, Uncertain(reason=UnknownReason.FOREIGN)),
        (MATCH, Responded(status=404, code="NoSuchBucket"), _refused(RefusalReason.NO_BUCKET)),
        (ABSENT, Responded(status=404, code="NoSuchBucket"), _refused(RefusalReason.NO_BUCKET)),
        (ABSENT, Responded(status=409, code="ConditionalRequestConflict"), CONFLICT),
        (MATCH, Responded(status=409), CONFLICT),
        (PLAIN, Responded(status=409), CONFLICT),
        (ABSENT, Responded(status=500), BROKEN),
        (ABSENT, Responded(status=503, code="SlowDown"), BROKEN),
        (ABSENT, Responded(status=429), BROKEN),
        (ABSENT, Responded(status=101), BROKEN),
        (
            ABSENT,
            Responded(status=400, code="RequestTimeout"),
            Uncertain(reason=UnknownReason.TIMEOUT),
        ),
        (ABSENT, LOST, Uncertain(reason=UnknownReason.RESET)),
        (
            MATCH,
            NotSent(detail="", cause=RefusalReason.NAME_UNKNOWN),
            _refused(RefusalReason.NAME_UNKNOWN),
        ),
        (MATCH, NOT_SENT, _refused(RefusalReason.UNREACHABLE)),
        (ABSENT, Responded(status=400, code="BadDigest"), _refused(RefusalReason.CHECKSUM)),
        (
            ABSENT,
            Responded(status=403, code="RequestTimeTooSkewed"),
            _refused(RefusalReason.CLOCK_SKEWED),
        ),
        (ABSENT, Responded(status=403, code="AccessDenied"), _refused(RefusalReason.DENIED)),
        (ABSENT, Responded(status=400, code="ExpiredToken"), _refused(RefusalReason.DENIED)),
        (
            ABSENT,
            Responded(status=301, code="PermanentRedirect"),
            _refused(RefusalReason.WRONG_PLACE),
        ),
        (ABSENT, Responded(status=501, code="NotImplemented"), _refused(RefusalReason.UNSUPPORTED)),
        (ABSENT, Responded(status=405), _refused(RefusalReason.UNSUPPORTED)),
    ],
)
def test_resolve_write_covers_every_outcome(
    condition: WriteCondition, seen: ExchangeResult, verdict: object
) -> None:
    """Each response of S3 to a write has one meaning under its condition."""
    assert resolve_write(condition, seen) == verdict


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Responded(status=200), Succeeded()),
        (Responded(status=206), Succeeded()),
        (Responded(status=404, code="NoSuchKey"), NoSuchObject()),
        (Responded(status=404, code="NoSuchPage"), _refused(RefusalReason.REJECTED)),
        (FOREIGN, _refused(RefusalReason.FOREIGN)),
        (Responded(status=404, code="NoSuchVersion"), NoSuchObject()),
        (Responded(status=405, code="MethodNotAllowed"), NoSuchObject()),
        (Responded(status=416), PastEnd()),
        (Responded(status=404, code="NoSuchBucket"), _refused(RefusalReason.NO_BUCKET)),
        (Responded(status=503), _refused(RefusalReason.OVERLOADED)),
        (Responded(status=500), _refused(RefusalReason.SERVER_ERROR)),
        (LOST, _refused(RefusalReason.NO_RESPONSE)),
        (NOT_SENT, _refused(RefusalReason.UNREACHABLE)),
        (Responded(status=403), _refused(RefusalReason.DENIED)),
    ],
)
def test_resolve_read_has_no_unknown(seen: ExchangeResult, verdict: object) -> None:
    assert resolve_read(seen) == verdict


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Responded(status=204), Succeeded()),
        (Responded(status=404, code="NoSuchVersion"), Succeeded()),
        (Responded(status=404, code="NoSuchBucket"), _refused(RefusalReason.NO_BUCKET)),
        (Responded(status=409), CONFLICT),
        (FOREIGN, Uncertain(reason=UnknownReason.FOREIGN)),
        (Responded(status=500), BROKEN),
        (LOST, Uncertain(reason=UnknownReason.RESET)),
        (NOT_SENT, _refused(RefusalReason.UNREACHABLE)),
        (Responded(status=403), _refused(RefusalReason.DENIED)),
    ],
)
def test_resolve_delete_of_a_missing_version_succeeds(
    seen: ExchangeResult, verdict: object
) -> None:
    assert resolve_delete(seen) == verdict
