"""Refusals of S3 as errors of the port, each saying what to do."""

from sluice_protocol.errors import (
    ChecksumRefused,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from sluice_protocol.resolution import Refusal


def refusal_error(refusal: Refusal, operation: str, key: str, detail: str) -> StoreError:
    """Gives the error for a refusal; `detail` is what the store or the network said."""
    kind, reason = _kind_and_advice(refusal)
    return kind(operation, key, f"{reason} ({detail})" if detail else reason)


def _kind_and_advice(refusal: Refusal) -> tuple[type[StoreError], str]:  # noqa: C901, PLR0911
    match refusal:
        case Refusal.UNREACHABLE:
            return StoreUnavailable, "no answer: look at the endpoint and the network, try again"
        case Refusal.DENIED:
            return StoreDenied, "access denied: check credentials and policy"
        case Refusal.CLOCK_SKEWED:
            return StoreDenied, "this machine's clock is more than 15 minutes off: set it"
        case Refusal.NO_BUCKET:
            return StoreMisconfigured, "no such bucket: make it, or name another in the store URL"
        case Refusal.WRONG_PLACE:
            return StoreMisconfigured, "the bucket is elsewhere: name its region and endpoint"
        case Refusal.UNSUPPORTED:
            return (
                StoreMisconfigured,
                "the store does not know this request: run `sluice doctor`",
            )
        case Refusal.CHECKSUM:
            return ChecksumRefused, "the body did not match its checksum: send it anew"
        case Refusal.REJECTED:
            return StoreMisconfigured, "the store refused the request: its answer says why"
