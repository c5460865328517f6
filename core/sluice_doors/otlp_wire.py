"""The protobuf messages of OTLP, with text as bytes and some parts unread.

The messages are those of `opentelemetry-proto` with two changes that keep the wire format. Strings
are bytes, because a parser refuses a whole request for one string that is not UTF-8. Some parts are
bytes, to be read one by one: arrays and maps inside a value, because Arrow has no recursive types,
and resources and scopes, because they are few.
"""

from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

_THEIRS: Final = "opentelemetry.proto."
_OURS: Final = "sluice_doors.otlp."
LOGS_REQUEST: Final = f"{_OURS}collector.logs.v1.ExportLogsServiceRequest"
METRICS_REQUEST: Final = f"{_OURS}collector.metrics.v1.ExportMetricsServiceRequest"
RESOURCE_LOGS: Final = f"{_OURS}logs.v1.ResourceLogs"
NESTED_ARRAY: Final = f"{_OURS}common.v1.ArrayValue"
NESTED_MAP: Final = f"{_OURS}common.v1.KeyValueList"
RESOURCE: Final = f"{_OURS}resource.v1.Resource"
SCOPE: Final = f"{_OURS}common.v1.InstrumentationScope"
_UNREAD: Final = {f".{name}" for name in (NESTED_ARRAY, NESTED_MAP, RESOURCE, SCOPE)}


@cache
def message_type(name: str) -> Descriptor:
    """Return the descriptor of a message."""
    return _pool().FindMessageTypeByName(name)


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for module in (logs_service_pb2, metrics_service_pb2):
        _add(pool, module.DESCRIPTOR)
    return pool


def _add(pool: DescriptorPool, theirs: FileDescriptor) -> None:
    for dependency in theirs.dependencies:
        _add(pool, dependency)
    ours = FileDescriptorProto()
    theirs.CopyToProto(ours)
    ours.name = _OURS + theirs.name
    ours.package = ours.package.replace(_THEIRS, _OURS)
    ours.ClearField("options")
    ours.ClearField("service")
    for place, name in enumerate(ours.dependency):
        ours.dependency[place] = _OURS + name
    for message in ours.message_type:
        _change(message)
    pool.Add(ours)


def _change(message: DescriptorProto) -> None:
    for field in message.field:
        if field.HasField("type_name"):
            field.type_name = field.type_name.replace(_THEIRS, _OURS)
        if field.type == FieldDescriptorProto.TYPE_STRING or field.type_name in _UNREAD:
            field.type = FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
