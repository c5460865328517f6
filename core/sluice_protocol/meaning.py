"""What a record means, whatever its sender called it: which keys feed each common field.

Doors and agents take the time and the body from an object by `TIME_KEYS` and `BODY_KEYS`, because a
record needs both when it is accepted. All other common fields are derived when a record is read,
from its attributes and the resource of its batch, which stay as they were sent (ADR 45). A change
of a list changes the fields of records that are read later, so `RULE` grows with it.

Sources: OpenTelemetry's log data model (severity numbers and the mapping of syslog), semantic
conventions 1.38; the documentation of the loggers that are named next to their keys.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final
from unicodedata import normalize

RULE: Final = 3
"""Number of the rule, which golden results of records pin."""
TIME_KEYS: Final = (
    "@timestamp", "timestamp", "time", "ts", "t", "@t", "Timestamp", "datetime", "timeMillis",
    "instant.epochSecond", "asctime", "t.$date", "record.time.timestamp", "time_iso8601",
    "__REALTIME_TIMESTAMP", "stageTimestamp", "EdgeStartTimestamp", "msec", "start_time",
)  # fmt: skip
"""Keys of the time of an object, the first that is present."""
TEMPLATE_TIME: Final = "@t"
"""The time of Serilog's compact form. It always stays an attribute, because it shows that a missing
level means Information.
"""
BODY_KEYS: Final = (
    "message", "msg", "log", "event", "record.message", "text", "body", "MESSAGE", "line", "@m",
    "@mt", "Message", "@message", "short_message", "RenderedMessage", "fields.message",
    "jsonPayload.message", "jsonPayload.msg", "textPayload", "properties.message",
    "properties.log", "resultDescription", "request",
)  # fmt: skip
"""Keys of the body of an object, the first with a text."""

CONTEXTS: Final = (
    "mdc", "contextMap", "context", "extra", "record.extra", "fields", "metadata", "Properties",
    "named_tags", "jsonPayload",
)  # fmt: skip
"""Objects in which loggers put what a program attaches to all records of a task: Logback and
Quarkus, Log4j, Monolog (two), Loguru, tracing of Rust, logger_json of Elixir, Serilog, semantic
logger of Ruby; and Google Cloud's payload.
"""


def _nested(*keys: str) -> tuple[str, ...]:
    """Return the keys inside each object of `CONTEXTS`."""
    return tuple(f"{one}.{key}" for one in CONTEXTS for key in keys)


DERIVED_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "service": (
        "service.name",
        "service_name",
        "service",
        "app",
        "application",
        "application_name",
        "applicationName",
        "app_name",
        "appName",
        "Application",
        "ApplicationName",
        "Properties.Application",
        "serviceName",
        "ServiceName",
        "serviceContext.service",
        "record.extra.service",
        "app.kubernetes.io/name",
        "job",
        "k8s.container.name",
        "container_name",
        "container",
        "SYSLOG_IDENTIFIER",
        "syslog.appname",
        "ident",
        "_SYSTEMD_UNIT",
        "program",
        "progname",
        "dd.service",
        "cloud_RoleName",
        "AppRoleName",
        "resource.labels.service_name",
        "resource.labels.container_name",
        "com.splunk.source",
        "name",
    ),
    "host": (
        "host.name",
        "hostname",
        "host",
        "k8s.node.name",
        "node_name",
        "_HOSTNAME",
        "MachineName",
        "Properties.MachineName",
        "host.hostname",
        "HOSTNAME",
        "hostName",
        "context.properties.HOSTNAME",
        "source_host",
        "logsource",
        "agent.hostname",
        "winlog.computer_name",
        "Computer",
        "resource.labels.node_name",
    ),
    "instance": (
        "service.instance.id",
        "k8s.pod.name",
        "pod_name",
        "pod",
        "instance",
        "container.id",
        "container_id",
        "cloud_RoleInstance",
        "AppRoleInstance",
        "resource.labels.pod_name",
    ),
    "trace_id": (
        "trace_id",
        "traceId",
        "traceid",
        "traceID",
        "TraceId",
        "@tr",
        "trace.id",
        "otelTraceID",
        "dd.trace_id",
        "logging.googleapis.com/trace",
        "X-B3-TraceId",
        "xray_trace_id",
        "operation_Id",
        "OperationId",
        "trace",
        *_nested("trace_id", "traceId", "TraceId"),
        "traceparent",
    ),
    "span_id": (
        "span_id",
        "spanId",
        "spanid",
        "spanID",
        "SpanId",
        "@sp",
        "span.id",
        "otelSpanID",
        "dd.span_id",
        "logging.googleapis.com/spanId",
        "X-B3-SpanId",
        "transaction.id",
        *_nested("span_id", "spanId", "SpanId"),
        "traceparent",
    ),
    "file": (
        "log.file.path",
        "filename",
        "log.file.name",
        "file",
        "file_path",
    ),
    "request": (
        "request_id",
        "requestId",
        "requestID",
        "RequestId",
        "request.id",
        "http.request.id",
        "req_id",
        "reqId",
        "req.id",
        "x_request_id",
        "x-request-id",
        "X-Request-ID",
        "http.request.header.x-request-id",
        "aws.request_id",
        "awsRequestId",
        "AWSRequestId",
        "function_request_id",
        "record.requestId",
        "auditID",
        "RayID",
        "correlation_id",
        "correlationId",
        "CorrelationId",
        *_nested("request_id", "requestId", "RequestId"),
    ),
}
"""For each text field the keys that feed it: the first with a text counts, in the attributes of the
record and then in the resource of its batch.
"""
ID_BYTES_MAX: Final = 128
"""A longer text is no id of a trace, a span or a request: it would be repeated for each record."""
BESIDE: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("hostname", "pid"),
    "trace": ("logName",),
    "OperationId": ("AppRoleName",),
    "start_time": ("response_flags",),
    "request": ("remote_addr",),
}
"""Keys that count only in records with all of these keys: alone they may be anything.

They belong to Bunyan and pino, Google Cloud, Azure, Envoy, and nginx.
"""
OBSERVED_KEY: Final = "observed_time_unix_nano"

LEVELS: Final = ("trace", "debug", "info", "warn", "error", "fatal")
"""The level of the severity numbers 1 to 4, 5 to 8, and so on."""
NUMBERS_A_LEVEL: Final = 4
LEVEL_CHARACTERS_MAX: Final = 64


class Scale(StrEnum):
    """How the number under a key states a severity; texts mean the same under each."""

    LOGGER = "logger"
    """Tens as pino and bunyan write them (10 trace to 60 fatal), hundreds as Monolog (100 debug to
    600 emergency), 0 to 7 as syslog and GELF.
    """
    SYSLOG = "syslog"
    """0 emergency to 7 debug."""
    OTEL = "OpenTelemetry"
    """1 to 24."""
    PYTHON = "Python"
    """10 debug to 50 critical."""
    MIXED = "syslog, OpenTelemetry or Google"
    """0 to 7 as syslog, 8 to 24 as OpenTelemetry, tens as pino, hundreds as Google Cloud."""
    GOOGLE = "Google"
    """0 default, 100 debug to 800 emergency."""
    WINDOWS = "Windows"
    """1 critical to 5 verbose; 0 is always logged."""
    DOTNET = ".NET"
    """0 trace to 5 critical."""
    INSIGHTS = "Application Insights"
    """0 verbose to 4 critical."""
    VERBOSITY = "klog"
    """0 to 3 information, 4 to 10 debug."""


@dataclass(frozen=True, slots=True)
class SeverityKey:
    """A key that states a severity; `sender` names who writes it.

    It counts only in records that have all the keys `beside` too.
    """

    name: str
    scale: Scale
    sender: str
    beside: tuple[str, ...] = ()


SEVERITY_KEYS: Final = (
    SeverityKey("severity_text", Scale.LOGGER, "OpenTelemetry"),
    SeverityKey("severity_number", Scale.OTEL, "OpenTelemetry"),
    SeverityKey("level_name", Scale.LOGGER, "Monolog"),
    SeverityKey("level", Scale.LOGGER, "most loggers, Loki's labels"),
    SeverityKey("log.level", Scale.LOGGER, "Elastic Common Schema"),
    SeverityKey("severity", Scale.GOOGLE, "Google Cloud", ("logName",)),
    SeverityKey("severity", Scale.MIXED, "Google Cloud, rsyslog"),
    SeverityKey("levelname", Scale.LOGGER, "Python's logging"),
    SeverityKey("error_severity", Scale.LOGGER, "PostgreSQL"),
    SeverityKey("loglevel", Scale.LOGGER, "JSON layouts of Java"),
    SeverityKey("log_level", Scale.LOGGER, "many"),
    SeverityKey("logLevel", Scale.LOGGER, "many"),
    SeverityKey("LogLevel", Scale.DOTNET, ".NET"),
    SeverityKey("EventLevel", Scale.WINDOWS, "Azure, tracing of Windows"),
    SeverityKey("severityLevel", Scale.INSIGHTS, "Application Insights"),
    SeverityKey("SeverityLevel", Scale.INSIGHTS, "Application Insights"),
    SeverityKey("Level", Scale.WINDOWS, "the event log of Windows", ("ProviderName", "Computer")),
    SeverityKey("Level", Scale.LOGGER, "Serilog, NLog, zerolog with other names"),
    SeverityKey("Severity", Scale.MIXED, "NXLog"),
    SeverityKey("@l", Scale.LOGGER, "Serilog's compact form"),
    SeverityKey("@level", Scale.LOGGER, "Terraform and other users of hclog"),
    SeverityKey("level.name", Scale.LOGGER, "Loguru"),
    SeverityKey("record.level.name", Scale.LOGGER, "Loguru with `serialize`"),
    SeverityKey("level.levelStr", Scale.LOGGER, "log4js"),
    SeverityKey("lvl", Scale.LOGGER, "log15, logfmt"),
    SeverityKey("detected_level", Scale.LOGGER, "Loki"),
    SeverityKey("severityText", Scale.LOGGER, "OpenTelemetry in JSON"),
    SeverityKey("severityNumber", Scale.OTEL, "OpenTelemetry in JSON"),
    SeverityKey("SeverityText", Scale.LOGGER, "OpenTelemetry in ClickHouse"),
    SeverityKey("levelno", Scale.PYTHON, "Python's logging"),
    SeverityKey("level_value", Scale.PYTHON, "Logstash's encoder for Java"),
    SeverityKey("PRIORITY", Scale.SYSLOG, "the journal of systemd"),
    SeverityKey("priority", Scale.SYSLOG, "syslog"),
    SeverityKey("syslog.severity", Scale.SYSLOG, "syslog"),
    SeverityKey("syslog_severity", Scale.SYSLOG, "Logstash"),
    SeverityKey("s", Scale.LOGGER, "MongoDB", ("c", "ctx", "id")),
    SeverityKey("v", Scale.VERBOSITY, "klog", ("caller",)),
)


@dataclass(frozen=True, slots=True)
class ImpliedSeverity:
    """The severity of records that have all `keys` and none of `SEVERITY_KEYS`."""

    keys: tuple[str, ...]
    severity: int
    sender: str


IMPLIED_SEVERITIES: Final = (
    ImpliedSeverity(("err", "caller"), 17, "klog"),
    ImpliedSeverity((TEMPLATE_TIME,), 9, "Serilog's compact form"),
)

NAMES: Final = {
    1: "trace trac trce trc t verbose verb vrb v finest silly all",
    5: "debug debu dbug dbg d finer debugging отладка 디버그 调试",
    6: "fine",
    7: "config konfig konfiguration",
    8: "http",
    9: "info inf i information informational informative infos log default normal statement"
    " success system infomation informationen informacja informacje informatie informazione"
    " informazioni información informação informações информация сообщение сведения інформація"
    " 信息 日志 資訊 日誌 情報 정보 로그 bilgi logg dziennik",
    10: "notice note n hinweis notifica nota notis uwaga замечание повідомлення 注意 알림",
    13: "warn warning wrn w warnings warnung avertissement attention advertencia avviso attenzione"
    " avvertenza aviso waarschuwing ostrzeżenie varning advarsel varoitus varování предупреждение"
    " попередження 警告 경고 uyari",
    17: "error err e eror erro failure fail failed fehler erreur errore fout błąd fel feil virhe"
    " chyba ошибка помилка エラー 错误 錯誤 오류 hata exception severe schwerwiegend grave 严重"
    " 嚴重 重大",
    18: "crit dpanic",
    19: "alert a",
    21: "fatal fatl fata ftl f critical emerg emergency panic pani pnc assert kritisch critique"
    " crítico critico critica kritiek krytyczny критическая критический фатальная фатально важно"
    " panik panika panico pânico паника паніка fatale fatalt katastrofalny 致命 致命的 致命错误"
    " 致命錯誤 치명적오류 심각 kritik ölümcül",
}
"""Lower-case words for each number: English ones and abbreviations of loggers, and the languages in
which Java, PostgreSQL and Windows write levels. Both letters `i` of Turkish are the English one.
"""
_NUMBER_OF: Final = {word: number for number, words in NAMES.items() for word in words.split()}
SYSLOG: Final = (21, 19, 18, 17, 13, 10, 9, 5)
_TENS: Final = {10: 1, 20: 5, 30: 9, 40: 13, 50: 17, 60: 21}
"""Severity of 10, 20, … of pino, bunyan and log4js."""
_MONOLOG: Final = {100: 5, 200: 9, 250: 10, 300: 13, 400: 17, 500: 21, 550: 19, 600: 21}
"""Numbers of Monolog, which are greater than those of all other loggers."""
_LOGBACK: Final = 1_000
"""Logback's numbers are those of Python times this: 10000 debug to 40000 error."""
_PYTHON: Final = (1, 5, 9, 13, 17, 21)
_GOOGLE: Final = (9, 5, 9, 10, 13, 17, 21, 19, 21)
_PLACES: Final = {
    Scale.SYSLOG: SYSLOG,
    Scale.WINDOWS: (9, 21, 17, 13, 9, 1),
    Scale.DOTNET: (1, 5, 9, 13, 17, 21),
    Scale.INSIGHTS: (1, 9, 13, 17, 21),
    Scale.VERBOSITY: (9, 9, 9, 9, 5, 5, 5, 5, 5, 5, 5),
}
"""Severities by number, of scales that begin with 0."""
_OTEL_MAX: Final = 24
_DIGITS_MAX: Final = 5
"""Levels of Java are up to five digits (`level_value` 40000 is an error)."""
_BRACKETS: Final = "[](){}<>\"':|=*-#. \t"
_SUFFIX: Final = re.compile(r"([^\W\d_]+)(?:([1-4])|[5-8]|[+-][0-9]{1,3})")
"""`ERROR3` of OpenTelemetry; `TRACE7` of Apache; `ERROR+2` of Go's slog, which is a level between
two names.
"""
_COLOR: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")
"""Escape sequences of terminals, with which some loggers color a level."""
_DOT_ABOVE: Final = "\u0307"
"""What the lower case of `İ` has behind its `i`."""


@lru_cache(maxsize=4_096)
def severity_of(text: str, scale: Scale = Scale.LOGGER) -> int:
    """Return the OpenTelemetry severity number of a level as it was sent; 0 for an unknown one.

    Names count in any case and inside brackets, numbers by the scale of their key.
    """
    text = _COLOR.sub("", text)
    plain = text.strip(_BRACKETS).lower()
    if not plain.isascii():
        composed = normalize("NFC", plain.replace(f"i{_DOT_ABOVE}", "i"))
        plain = composed.replace("ı", "i")  # noqa: RUF001 - Turkish
    if plain.isascii() and plain.isdigit():
        sign = -1 if text.strip().startswith("-") else 1
        return _of_number(sign * int(plain), scale) if len(plain) <= _DIGITS_MAX else 0
    known = _NUMBER_OF.get(plain)
    if known is not None:
        return known
    found = _SUFFIX.fullmatch(plain)
    if found is None:
        return 0
    base = _NUMBER_OF.get(found[1], 0)
    return base + int(found[2]) - 1 if base and found[2] else base


def _of_number(number: int, scale: Scale) -> int:
    if scale in _PLACES:
        return _at(_PLACES[scale], number)
    if scale is Scale.GOOGLE:
        return _hundreds(number)
    if scale is Scale.PYTHON:
        size = number // _LOGBACK if number >= _LOGBACK else number
        return _at(_PYTHON, size // 10) if size > 0 else 0
    if scale is Scale.OTEL or (scale is Scale.MIXED and len(SYSLOG) <= number <= _OTEL_MAX):
        return number if 0 < number <= _OTEL_MAX else 0
    hundreds = _MONOLOG.get(number, 0) if scale is Scale.LOGGER else _hundreds(number)
    return _TENS.get(number) or _at(SYSLOG, number) or hundreds


def _hundreds(number: int) -> int:
    return 0 if number % 100 else _at(_GOOGLE, number // 100)


def _at(numbers: tuple[int, ...], place: int) -> int:
    return numbers[place] if 0 <= place < len(numbers) else 0


def level_of(severity: int, text: str = "") -> str:
    """Return the level of a severity number; of an unknown one its text in lower case."""
    if 0 < severity <= _OTEL_MAX:
        return LEVELS[(severity - 1) // NUMBERS_A_LEVEL]
    return text.strip()[:LEVEL_CHARACTERS_MAX].lower()


_XRAY: Final = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}.*")


def plain_id(field: str, text: str) -> str:
    """Return the id of a trace or span in lower case.

    A UUID loses its dashes, an id of Google Cloud the path before it, and one of AWS X-Ray its
    version. `text` may be a `traceparent` of W3C.
    """
    lower = text.strip().lower()
    found = _XRAY.fullmatch(lower)
    if found is not None:
        return found[1] + found[2]
    found = _TRACEPARENT.fullmatch(lower)
    if found is not None:
        return found[1] if field == "trace_id" else found[2]
    return lower.rpartition("/")[2].replace("-", "")
