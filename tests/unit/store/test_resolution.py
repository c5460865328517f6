"""The rules of what an exchange with a store means."""

import pytest

from sluice_protocol.outcomes import UnknownReason
from sluice_protocol.resolution import (
    Answered,
    Condition,
    ConditionFailed,
    Lost,
    NothingThere,
    NotSent,
    PastEnd,
    Refusal,
    Refused,
    Seen,
    Succeeded,
    Uncertain,
    resolve_delete,
    resolve_read,
    resolve_write,
)

LOST = Lost(reason=UnknownReason.RESET, detail="reset")
NOT_SENT = NotSent(detail="refused")
ABSENT, MATCH, PLAIN = Condition.IF_ABSENT, Condition.IF_MATCH, Condition.NONE
CONFLICT = Uncertain(reason=UnknownReason.CONFLICT)
SLOW = Uncertain(reason=UnknownReason.TIMEOUT)
BROKEN = Uncertain(reason=UnknownReason.SERVER_ERROR)


def _refused(refusal: Refusal) -> Refused:
    return Refused(refusal=refusal)


@pytest.mark.parametrize(
    ("condition", "seen", "verdict"),
    [
        (ABSENT, Answered(status=200), Succeeded()),
        (ABSENT, Answered(status=412), ConditionFailed()),
        (MATCH, Answered(status=412), ConditionFailed()),
        (PLAIN, Answered(status=412), _refused(Refusal.REJECTED)),
        (MATCH, Answered(status=404, code="NoSuchKey"), ConditionFailed()),
        (MATCH, Answered(status=404), ConditionFailed()),
        (MATCH, Answered(status=404, code="NoSuchBucket"), _refused(Refusal.NO_BUCKET)),
        (ABSENT, Answered(status=404, code="NoSuchBucket"), _refused(Refusal.NO_BUCKET)),
        (ABSENT, Answered(status=409, code="ConditionalRequestConflict"), CONFLICT),
        (MATCH, Answered(status=409), CONFLICT),
        (PLAIN, Answered(status=409), CONFLICT),
        (ABSENT, Answered(status=500), BROKEN),
        (ABSENT, Answered(status=503, code="SlowDown"), BROKEN),
        (ABSENT, Answered(status=429), BROKEN),
        (ABSENT, Answered(status=101), BROKEN),
        (
            ABSENT,
            Answered(status=400, code="RequestTimeout"),
            Uncertain(reason=UnknownReason.TIMEOUT),
        ),
        (ABSENT, LOST, Uncertain(reason=UnknownReason.RESET)),
        (MATCH, NOT_SENT, _refused(Refusal.UNREACHABLE)),
        (ABSENT, Answered(status=400, code="BadDigest"), _refused(Refusal.CHECKSUM)),
        (ABSENT, Answered(status=403, code="RequestTimeTooSkewed"), _refused(Refusal.CLOCK_SKEWED)),
        (ABSENT, Answered(status=403, code="AccessDenied"), _refused(Refusal.DENIED)),
        (ABSENT, Answered(status=400, code="ExpiredToken"), _refused(Refusal.DENIED)),
        (ABSENT, Answered(status=301, code="PermanentRedirect"), _refused(Refusal.WRONG_PLACE)),
        (ABSENT, Answered(status=501, code="NotImplemented"), _refused(Refusal.UNSUPPORTED)),
        (ABSENT, Answered(status=405), _refused(Refusal.UNSUPPORTED)),
    ],
)
def test_resolve_write_names_every_outcome(
    condition: Condition, seen: Seen, verdict: object
) -> None:
    """Each answer of S3 to a write has one meaning under its condition."""
    assert resolve_write(condition, seen) == verdict


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Answered(status=200), Succeeded()),
        (Answered(status=206), Succeeded()),
        (Answered(status=404), NothingThere()),
        (Answered(status=404, code="NoSuchVersion"), NothingThere()),
        (Answered(status=405), NothingThere()),
        (Answered(status=416), PastEnd()),
        (Answered(status=404, code="NoSuchBucket"), _refused(Refusal.NO_BUCKET)),
        (Answered(status=503), _refused(Refusal.UNREACHABLE)),
        (LOST, _refused(Refusal.UNREACHABLE)),
        (NOT_SENT, _refused(Refusal.UNREACHABLE)),
        (Answered(status=403), _refused(Refusal.DENIED)),
    ],
)
def test_resolve_read_has_no_unknown(seen: Seen, verdict: object) -> None:
    """A read either found, found nothing, or was refused: it is made again, never guessed."""
    assert resolve_read(seen) == verdict


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (Answered(status=204), Succeeded()),
        (Answered(status=404, code="NoSuchVersion"), Succeeded()),
        (Answered(status=404, code="NoSuchBucket"), _refused(Refusal.NO_BUCKET)),
        (Answered(status=409), CONFLICT),
        (Answered(status=500), BROKEN),
        (LOST, Uncertain(reason=UnknownReason.RESET)),
        (NOT_SENT, _refused(Refusal.UNREACHABLE)),
        (Answered(status=403), _refused(Refusal.DENIED)),
    ],
)
def test_resolve_delete_gone_is_gone(seen: Seen, verdict: object) -> None:
    """A delete of an incarnation that is absent has done its work."""
    assert resolve_delete(seen) == verdict
