"""Decode OTLP requests: the public functions, and the choice of the decoder for each body."""

from contextlib import suppress
from typing import Final

from sluice_doors.decoded import BodyUnreadable, DecodedRecords
from sluice_doors.otlp import json as otlp_json
from sluice_doors.otlp import protobuf as otlp_protobuf
from sluice_doors.otlp.logs import logs_from_groups
from sluice_doors.otlp.metrics import metrics_from_groups
from sluice_doors.protobuf import arrow_road

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


def decode_otlp_logs(
    body: bytes, content_type: str, *, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return the records of a logs request; empty if it has none.

    Args:
        body: The body after decompression.
        content_type: `application/x-protobuf` or `application/json`; parameters are ignored.
        received_ns: The time of records that contain none.

    Raises:
        BodyUnreadable: The body is not an OTLP logs request of this type.
        BodyTooLarge: Its records expand to more than the limits.
    """
    if not _is_protobuf(content_type):
        found = logs_from_groups(otlp_json.log_groups(body), received_ns=received_ns)
    else:
        found = _logs_from_protobuf(body, received_ns)
    return () if found is None else (found,)


def decode_otlp_metrics(
    body: bytes, content_type: str, *, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return the points of a metrics request; empty if it has none.

    Args:
        body: The body after decompression.
        content_type: `application/x-protobuf` or `application/json`; parameters are ignored.
        received_ns: The time of points that contain none.

    Raises:
        BodyUnreadable: The body is not an OTLP metrics request of this type.
        BodyTooLarge: Its points expand to more than the limits.
    """
    if not _is_protobuf(content_type):
        found = metrics_from_groups(otlp_json.metric_groups(body), received_ns=received_ns)
    else:
        found = _metrics_from_protobuf(body, received_ns)
    return () if found is None else (found,)


def _logs_from_protobuf(body: bytes, received_ns: int) -> DecodedRecords | None:
    fast = arrow_road("otlp.arrow_logs", body)
    if fast is not None:
        with suppress(fast.NotPlain):
            found: DecodedRecords | None = fast.decode_logs(body, received_ns=received_ns)
            return found
    return logs_from_groups(otlp_protobuf.log_groups(body), received_ns=received_ns)


def _metrics_from_protobuf(body: bytes, received_ns: int) -> DecodedRecords | None:
    fast = arrow_road("otlp.arrow_metrics", body)
    if fast is not None:
        with suppress(fast.NotPlain):
            found: DecodedRecords | None = fast.decode_metrics(body, received_ns=received_ns)
            return found
    return metrics_from_groups(otlp_protobuf.metric_groups(body), received_ns=received_ns)


def _is_protobuf(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in (PROTOBUF, JSON):
        raise BodyUnreadable(
            f"cannot read body as OTLP: media type is not supported, type=`{content_type[:80]}`;"
            f" use {PROTOBUF} or {JSON}"
        )
    return media_type == PROTOBUF
