"""Requests of the doors other than OTLP, each with every field of its protocol."""

import json

from support.proto_bytes import double, integer, packed, packed_signed, part, signed

MS = 1_763_769_600_123


def label(name: str, value: str) -> bytes:
    return part(1, name) + part(2, value)


def native_histogram() -> bytes:
    """Return schema 0, three positive buckets in two spans, one negative, and a zero bucket."""
    return b"".join(
        (
            integer(1, 12), double(3, 20.5), signed(4, 0), double(5, 0.25), integer(6, 2),
            part(8, signed(1, 1) + integer(2, 1)), packed_signed(9, [3]),
            part(11, signed(1, 0) + integer(2, 2)), part(11, signed(1, 1) + integer(2, 1)),
            packed_signed(12, [1, 1, 2]), integer(14, 0), integer(15, MS),
        )
    )  # fmt: skip


def custom_histogram() -> bytes:
    """Return stated bounds 1 and 5, with 2 and 3 measurements, and one above."""
    return b"".join(
        (
            double(2, 6.0), double(3, 9.0), signed(4, -53),
            part(11, signed(1, 0) + integer(2, 3)),
            part(13, b"".join(double(0, one)[1:] for one in (2.0, 3.0, 1.0))),
            integer(15, MS), part(16, b"".join(double(0, one)[1:] for one in (1.0, 5.0))),
        )
    )  # fmt: skip


REMOTE_WRITE = b"".join(
    (
        part(
            1,
            part(1, label("__name__", "http_requests_total"))
            + part(1, label("job", "api"))
            + part(2, double(1, 5.0) + integer(2, MS))
            + part(2, double(1, 6.0) + integer(2, MS + 1000))
            + part(3, part(1, label("trace_id", "abc")) + double(2, 0.5) + integer(3, MS + 1)),
        ),
        part(1, part(1, label("__name__", "up")) + part(2, double(1, 1.0) + integer(2, MS))),
        part(1, part(1, label("__name__", "rpc")) + part(4, native_histogram())),
        part(1, part(1, label("__name__", "batch")) + part(4, custom_histogram())),
        part(3, integer(1, 1) + part(2, "http_requests") + part(4, "All requests") + part(5, "1")),
    )
)
_SYMBOLS = ("", "__name__", "rpc_total", "job", "api", "Calls", "calls", "trace_id", "abc", "temp")
REMOTE_WRITE_2 = b"".join(part(4, one) for one in _SYMBOLS) + b"".join(
    (
        part(
            5,
            packed(1, [1, 2, 3, 4])
            + part(2, double(1, 7.0) + integer(2, MS))
            + part(4, packed(1, [7, 8]) + double(2, 0.25))
            + part(5, integer(1, 1) + integer(3, 5) + integer(4, 6))
            + integer(6, MS - 5000),
        ),
        part(
            5,
            packed(1, [1, 9]) + part(3, native_histogram()) + part(5, integer(1, 3)),
        ),
    )
)


def timestamp(seconds: int, nanos: int) -> bytes:
    return integer(1, seconds) + integer(2, nanos)


def loki_entry(seconds: int, nanos: int, line: str, *metadata: bytes) -> bytes:
    return part(1, timestamp(seconds, nanos)) + part(2, line) + b"".join(metadata)


LOKI = b"".join(
    (
        part(
            1,
            part(1, '{job="api", env="a\\"b\\u00fc\\xc3\\xbc"}')
            + part(2, loki_entry(1_763_769_600, 5, "first", part(3, label("trace", "t1"))))
            + part(2, loki_entry(1_763_769_600, 6, "second", part(4, label("level", "warn"))))
            + integer(3, 99),
        ),
        part(1, part(1, '{job="api"}') + part(2, loki_entry(1_763_769_601, 0, "third"))),
        part(2, "loki"),
    )
)
LOKI_JSON = json.dumps(
    {
        "streams": [
            {
                "stream": {"job": "api", "env": 'a"büü'},
                "values": [
                    ["1763769600000000005", "first", {"trace": "t1"}],
                    ["1763769600000000006", "second", {"level": "warn"}],
                ],
            },
            {"stream": {"job": "api"}, "values": [["1763769601000000000", "third"]]},
        ]
    },
    ensure_ascii=False,
).encode()
NDJSON = b"""{"time":"2025-11-22T00:00:00.5Z","message":"first","level":"info","n":5,"none":null}
{"time":1763769600123,"log":{"file":{"path":"/a"},"offset":12},"list":[1,{"b":2,"a":1}]}\r

{"time":"1763769600.25","message":{"b":1,"a":2.50},"":"empty"}
"""
BULK = b"""{"create":{"_index":"logs","_id":"7","routing":"r"}}
{"@timestamp":"2025-11-22T00:00:00.123Z","message":"first","log":{"file":{"path":"/a"},"offset":1}}
{"index":{}}
{"message":"second","@timestamp":"2025-11-22T00:00:01Z"}
{"update":{"_id":"8"}}
{"doc":{"message":"third","@timestamp":"2025-11-22T00:00:02Z"}}
"""
