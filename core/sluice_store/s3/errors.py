"""Refusals of S3 as errors of the port, each saying what to do."""

from sluice_protocol.errors import (
    ChecksumRefused,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from sluice_protocol.resolution import RefusalReason


def refusal_error(refusal: RefusalReason, operation: str, key: str, detail: str) -> StoreError:
    """Gives the error for a refusal; `detail` is what the store or the network said."""
    kind, reason = _kind_and_advice(refusal)
    return kind(operation, key, f"{reason} ({detail})" if detail else reason)


def _kind_and_advice(refusal: RefusalReason) -> tuple[type[StoreError], str]:  # noqa: C901, PLR0911
    match refusal:
        case RefusalReason.UNREACHABLE:
            return StoreUnavailable, "no answer: look at the endpoint and the network, try again"
        case RefusalReason.DENIED:
            return StoreDenied, "access denied: check credentials and policy"
        case RefusalReason.CLOCK_SKEWED:
            return StoreDenied, "this machine's clock is more than 15 minutes off: set it"
        case RefusalReason.NO_BUCKET:
            return StoreMisconfigured, "no such bucket: make it, or name another in the store URL"
        case RefusalReason.WRONG_PLACE:
            return StoreMisconfigured, "the bucket is elsewhere: name its region and endpoint"
        case RefusalReason.UNSUPPORTED:
            return (
                StoreMisconfigured,
                "the store does not know this request: run `sluice doctor`",
            )
        case RefusalReason.CHECKSUM:
            return ChecksumRefused, "the body did not match its checksum: send it anew"
        case RefusalReason.REJECTED:
            return StoreMisconfigured, "the store refused the request: its answer says why"
