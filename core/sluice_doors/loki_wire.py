"""The protobuf messages of Loki's push requests. Source: grafana/loki, pkg/push/push.proto."""

from functools import cache
from typing import Any

from sluice_doors.proto_types import message_classes


@cache
def push_classes() -> dict[str, Any]:
    """Return the class of each message by name; `PushRequest` contains all others."""
    label = {"name": (1, "bytes"), "value": (2, "bytes")}
    return message_classes(
        "sluice_doors.loki",
        {
            "Label": label,
            "Timestamp": {"seconds": (1, "int64"), "nanos": (2, "int32")},
            "Entry": {
                "timestamp": (1, "Timestamp"),
                "line": (2, "bytes"),
                "structured_metadata": (3, "*Label"),
                "parsed": (4, "*Label"),
            },
            "Stream": {"labels": (1, "bytes"), "entries": (2, "*Entry"), "hash": (3, "uint64")},
            "PushRequest": {"streams": (1, "*Stream"), "format": (2, "bytes")},
        },
    )
