"""The protobuf messages of Prometheus remote write 1.0 and 2.0, with text as bytes.

Source: prometheus/prometheus, `prompb/types.proto`, `prompb/remote.proto`,
`prompb/io/prometheus/write/v2/types.proto`.
"""

from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from sluice_doors.decoded import BodyUnreadable
from sluice_doors.proto_types import message_classes

_SPAN: Final = {"offset": (1, "sint32"), "length": (2, "uint32")}
_HISTOGRAM: Final = {
    "count_int": (1, "uint64"),
    "count_float": (2, "?double"),
    "sum": (3, "double"),
    "schema": (4, "sint32"),
    "zero_threshold": (5, "double"),
    "zero_count_int": (6, "uint64"),
    "zero_count_float": (7, "?double"),
    "negative_spans": (8, "*Span"),
    "negative_deltas": (9, "*sint64"),
    "negative_counts": (10, "*double"),
    "positive_spans": (11, "*Span"),
    "positive_deltas": (12, "*sint64"),
    "positive_counts": (13, "*double"),
    "reset_hint": (14, "int32"),
    "timestamp": (15, "int64"),
    "custom_values": (16, "*double"),
    "start_timestamp": (17, "int64"),
}
_MESSAGES_1: Final = {
    "Label": {"name": (1, "bytes"), "value": (2, "bytes")},
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
    "Exemplar": {"labels": (1, "*Label"), "value": (2, "double"), "timestamp": (3, "int64")},
    "Span": _SPAN,
    "Histogram": _HISTOGRAM,
    "TimeSeries": {
        "labels": (1, "*Label"),
        "samples": (2, "*Sample"),
        "exemplars": (3, "*Exemplar"),
        "histograms": (4, "*Histogram"),
    },
    "Metadata": {
        "type": (1, "int32"),
        "family": (2, "bytes"),
        "help": (4, "bytes"),
        "unit": (5, "bytes"),
    },
    "WriteRequest": {"timeseries": (1, "*TimeSeries"), "metadata": (3, "*Metadata")},
}
_MESSAGES_2: Final = {
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64"), "start_timestamp": (3, "int64")},
    "Exemplar": {
        "labels_refs": (1, "*uint32"),
        "value": (2, "double"),
        "timestamp": (3, "int64"),
    },
    "Span": _SPAN,
    "Histogram": _HISTOGRAM,
    "Metadata": {"type": (1, "int32"), "help_ref": (3, "uint32"), "unit_ref": (4, "uint32")},
    "TimeSeries": {
        "labels_refs": (1, "*uint32"),
        "samples": (2, "*Sample"),
        "histograms": (3, "*Histogram"),
        "exemplars": (4, "*Exemplar"),
        "metadata": (5, "Metadata"),
        "created_timestamp": (6, "int64"),
    },
    "Request": {"symbols": (4, "*bytes"), "timeseries": (5, "*TimeSeries")},
}


@cache
def _classes(version: int) -> dict[str, Any]:
    messages = _MESSAGES_1 if version == 1 else _MESSAGES_2
    return message_classes(f"sluice_doors.prometheus.v{version}", messages)


def write_request_type() -> Descriptor:
    """Return the type of a request of remote write 1.0."""
    found: Descriptor = _classes(1)["WriteRequest"].DESCRIPTOR
    return found


def parse_write_request(body: bytes) -> Any:  # noqa: ANN401 - the class is made at run time
    """Return a request of remote write 1.0.

    Raises:
        BodyUnreadable: It is not one.
    """
    return _parse(1, "WriteRequest", body)


def parse_write_request_2(body: bytes) -> Any:  # noqa: ANN401 - the class is made at run time
    """Return a request of remote write 2.0.

    Raises:
        BodyUnreadable: It is not one.
    """
    return _parse(2, "Request", body)


def _parse(version: int, name: str, body: bytes) -> Any:  # noqa: ANN401 - made at run time
    try:
        return _classes(version)[name].FromString(body)
    except DecodeError as error:
        raise BodyUnreadable(f"cannot read body as remote write {version}.0: {error}") from error
