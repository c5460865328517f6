"""Requests drawn from the OpenAPI description of each service: no 5xx, no defect, no long wait.

Requests drawn from the OpenAPI description of a service: valid ones, and hostile ones.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from support.web_services import DOOR_TOKEN, SERVICES, Services, served

Request = tuple[str, str, tuple[tuple[str, str], ...], bytes]
"""Method, target, fields, body."""

HOSTILE: Final = (
    *("", "0", "-1", "1e9", "9" * 19, "9" * 5000, "0" * 5000 + "1", "00000000100", "٣", "0x10"),
    *("a" * 500, "ü" * 300, "a/b", "../" * 20, "\x00", "\x7f", "\ud800", "%", "null", "[]", "."),
    *(
        "1." + "9" * 5000,
        "0.01M7X2Z6",
        "accepted/v1/x",
        "1h",
        "9" * 9 + "d",
        "-9223372036854775808",
    ),
    *("9223372036854775807", "99999999999999999d", "2026-13-01T00:00:00Z", "a=b", "=", "(" * 500),
    *("9999-12-31T23:59:59.999999999Z", "0001-01-01T00:00:00Z", "audit/", "gc/plans/" + "x" * 900),
)
_RAW_FIELDS: Final = (
    ("Authorization", f"Bearer {DOOR_TOKEN}"),
    ("Authorization", "Bearer \udcff"),
    ("Authorization", "Bearer " + "x" * 5000),
    ("Authorization", "Basic \udc80\udcfe"),
    ("Content-Type", "\udcff"),
    ("Content-Type", "application/json; charset=\udcff"),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "\udcff"),
    ("Signature-Input", "sig1=(\udcff"),
    ("Signature-Input", 'sig1=("@method");created=' + "9" * 5000 + ';keyid="operator-key"'),
    ("Signature", "sig1=:\udcff:"),
    ("Content-Digest", "sha-256=:\udcff:"),
    ("Sluice-High-Water", "9" * 5000),
    ("Expect", "\udcff"),
    ("Expect", "100-continue"),
    ("Origin", "\udcff"),
    ("Sec-Fetch-Site", "\udcff"),
    ("Host", "\udcff"),
    ("Host", "[" * 300),
    ("Accept", "text/html"),
    ("Cookie", "\udcff=\udcff"),
    ("X-Requested-With", "\udcff"),
)
_JSON: Final = ("Content-Type", "application/json")

_text = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))
_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def requests_of(
    document: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> st.SearchStrategy[Request]:
    """Return requests to every operation of a description.

    Args:
        document: The OpenAPI description.
        names: Valid values of parameters by name, next to the hostile ones.
    """
    schemas = document["components"]["schemas"]
    return st.one_of(
        *(
            _requests(method.upper(), path, operation, schemas, names)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        )
    )


def sweep_of(document: Mapping[str, Any], *, each: bool = True) -> Iterator[Request]:
    """Return every hostile value in every place of every operation, one at a time.

    Args:
        document: The OpenAPI description.
        each: If false, a parameter of the same name and type gets its values in one operation, of
            the values every sixth one, and of the fields every eighth one, in turn.
    """
    swept: list[Any] = []
    routes = 0
    for path, operations in document["paths"].items():
        for name, operation in operations.items():
            method, plain = name.upper(), path.replace("{id}", "x")
            fields = (_JSON,) if method == "POST" else ()
            for one in operation.get("parameters", ()):
                if not each and one in swept:
                    continue
                swept.append(one)
                for text in HOSTILE if each else HOSTILE[len(swept) % 6 :: 6]:
                    value = _quoted(text)
                    target = f"{plain}?{one['name']}={value}"
                    if one["in"] == "path":
                        target = path.replace("{" + one["name"] + "}", value or "-")
                    yield method, target[:8000], fields, b"{}" if fields else b""
            routes += 1
            for field in _RAW_FIELDS if each else _RAW_FIELDS[routes % 8 :: 8]:
                yield method, plain, (field, *fields), b"{}" if fields else b""
            if method == "POST":
                yield from ((method, plain, fields, body) for body in _BODIES)


@st.composite
def _requests(
    draw: st.DrawFn,
    method: str,
    path: str,
    operation: Mapping[str, Any],
    schemas: Mapping[str, Any],
    names: Mapping[str, tuple[str, ...]],
) -> Request:
    query = []
    for one in operation.get("parameters", ()):
        value = _value(one, names)
        if one["in"] == "path":
            path = path.replace("{" + one["name"] + "}", _quoted(draw(value)) or "-")
        elif draw(st.booleans()):
            repeats = draw(st.sampled_from((1, 1, 1, 2)))
            query += [f"{one['name']}={_quoted(draw(value))}" for _ in range(repeats)]
    if draw(st.integers(0, 9)) == 0:
        query.append(f"{_quoted(draw(_text))}={_quoted(draw(_text))}")
    target = path + ("?" + "&".join(query) if query else "")
    fields = [
        draw(st.sampled_from(_RAW_FIELDS)) for _ in range(draw(st.sampled_from((0, 0, 1, 2))))
    ]
    if method != "POST":
        return method, target[:8000], tuple(fields), b""
    if draw(st.integers(0, 4)):
        fields.append(_JSON)
    return method, target[:8000], tuple(fields), draw(_body(operation, schemas))


def _value(
    parameter: Mapping[str, Any], names: Mapping[str, tuple[str, ...]]
) -> st.SearchStrategy[str]:
    schema = parameter["schema"]
    known = list(names.get(parameter["name"], ()))
    if schema.get("type") == "integer":
        most = schema["minimum"] if parameter["name"] == "wait" else schema["maximum"]
        known += [str(number) for number in (schema["minimum"], most, schema["maximum"] + 1)]
    known += [str(one) for one in schema.get("enum", ())]
    known += ["true", "false"] if schema.get("type") == "boolean" else []
    return st.one_of(st.sampled_from(known), _text) if known else _text


def _quoted(text: str) -> str:
    return quote_from_bytes(text.encode("utf-8", "surrogatepass"), safe="")


def _body(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> st.SearchStrategy[bytes]:
    contents = operation.get("requestBody", {}).get("content", {})
    typed = [
        _of_schema(one["schema"], schemas, 4)
        for one in contents.values()
        if one["schema"].get("format") != "binary"
    ]
    encoded = st.one_of(*typed, _json).map(_encoded)
    return st.one_of(encoded, encoded, st.binary(max_size=64), st.sampled_from(_BODIES))


_BODIES: Final = (
    b"",
    b"[" * 5000,
    b'{"a":' * 3000,
    b'"\xff"',
    b'"\\ud800"',
    b'{"lease_ids":["' + b"9" * 5000 + b'.x"]}',
    '{"lease_ids":["²³.x"]}'.encode(),
    b'{"Records":[{"eventName":"ObjectCreated","s3":{"object":{"key":"%ff\\u0000"}}}]}',
    b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"' + b"9" * 5000 + b'"}]}]}]}',
    b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"\\ud800"}}]}]}]}',
    b"9" * 5000,
    b"1e400",
)


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _of_schema(
    schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int
) -> st.SearchStrategy[Any]:
    """Return values of a schema, some with a member of another type."""
    if "$ref" in schema:
        return _of_schema(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    if depth == 0:
        return _json
    inner = [_of_schema(one, schemas, depth - 1) for one in schema.get("anyOf", ())]
    if "enum" in schema:
        inner.append(st.sampled_from(schema["enum"]))
    match schema.get("type"):
        case "object":
            members = {
                name: _of_schema(one, schemas, depth - 1)
                for name, one in schema.get("properties", {}).items()
            }
            inner.append(st.fixed_dictionaries({}, optional=members))
        case "array":
            inner.append(
                st.lists(_of_schema(schema.get("items", {}), schemas, depth - 1), max_size=3)
            )
        case "string":
            inner.append(_text)
        case "integer":
            inner.append(st.integers())
        case "boolean":
            inner.append(st.booleans())
    return st.one_of(*inner, _json)


LONG = int(os.environ.get("SLUICE_FUZZ_EXAMPLES", "500"))
DEFECTS = {"request_failed", "request_error", "http_server_error", "library_error"}
"""Events that an operator must act on; no request of a client may cause one."""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with served(tmp_path_factory.mktemp("fuzz")) as found:
        yield found


def check(services: Services, service: str, document: dict[str, Any], request: Request) -> None:
    method, target, fields, body = request
    with capture_logs() as events:
        response = services.request(service, method, target, *fields, body=body)
    defects = [one for one in events if one["event"] in DEFECTS]
    assert defects == []
    path = target.partition("?")[0]
    described = document["paths"].get(path, {}).get(method.lower(), {"responses": {}})
    allowed = response.status == 503 and "503" in described["responses"]
    assert 100 <= response.status < 500 or allowed, response
    assert "Traceback" not in response.body.decode("latin-1")


def fuzz(services: Services, service: str, examples: int) -> None:
    document = services.request(service, "GET", "/openapi.json").problem
    listed = services.request("reconciler", "GET", "/v1/conflicts").problem
    names = {
        "id": tuple(one["id"] for one in listed["conflicts"]),
        "agent": ("host-1",),
        "queue": ("http",),
        "kind": ("logs",),
    }

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(request=requests_of(document, names))
    def run(request: Request) -> None:
        check(services, service, document, request)

    run()


@pytest.mark.daily(2)
@pytest.mark.parametrize("service", SERVICES)
def test_no_hostile_value_causes_a_server_error(services: Services, service: str) -> None:
    """Values in every different parameter, and in fields and body of every route."""
    document = services.request(service, "GET", "/openapi.json").problem
    for request in sweep_of(document, each=False):
        check(services, service, document, request)


@pytest.mark.long
@pytest.mark.parametrize("service", SERVICES)
def test_no_hostile_value_in_any_route_causes_a_server_error(
    services: Services, service: str
) -> None:
    document = services.request(service, "GET", "/openapi.json").problem
    for request in sweep_of(document):
        check(services, service, document, request)


@pytest.mark.parametrize("service", SERVICES)
def test_no_request_causes_a_server_error(services: Services, service: str) -> None:
    fuzz(services, service, 25)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("service", SERVICES)
def test_no_request_causes_a_server_error_in_a_long_run(services: Services, service: str) -> None:
    fuzz(services, service, LONG)
