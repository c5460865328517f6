"""Types of protobuf from a table of fields, and which bodies are decoded through Arrow.

Arrow needs the extra `doors`. Measured for whole requests of 64 KiB, in processor time of the
gateway without and with it: OTLP logs 2.0, OTLP metrics 3.0, Loki 5.0, remote write 5.1 times.
"""

import base64
import importlib
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

_KINDS: Final = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "sint32": FieldDescriptorProto.TYPE_SINT32,
    "sint64": FieldDescriptorProto.TYPE_SINT64,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}
Fields = Mapping[str, tuple[int, str]]
"""The number and type of each field: a scalar or a message of the table, `*` in front of a repeated
one, `?` in front of one with presence. Strings are `bytes`, so that text that is not UTF-8 is read.
"""


FOREIGN: Final = "message of another kind: its fields have other types than they should"


def is_foreign(message: Any) -> bool:  # noqa: ANN401 - the class is made at run time
    """Return whether a message is not of the kind of its class.

    Then a declared field number has another wire type, and the parser puts it into the unknown
    fields. A field that a later version of the protocol adds has a new number.
    """
    known = message.DESCRIPTOR.fields_by_number
    return any(one.field_number in known for one in UnknownFieldSet(message))


def varint(number: int) -> bytes:
    """Return a number of at least 0 in the form of protobuf, seven bits a byte."""
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def field_head(number: int, size_bytes: int) -> bytes:
    """Return what precedes the bytes of a field with a length: its number and the length."""
    return varint(number << 3 | 2) + varint(size_bytes)


def base64_of_message(message: Any) -> str:  # noqa: ANN401 - the class is made at run time
    """Return a message as it came, with its unknown fields, in base64."""
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def message_classes(package: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """Return a class for each message of a table."""
    file = FileDescriptorProto(name=package, package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            plain = kind.lstrip("*?")
            repeated = kind.startswith("*")
            field.label = (
                FieldDescriptorProto.LABEL_REPEATED
                if repeated
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            if plain in _KINDS:
                field.type = _KINDS[plain]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{package}.{plain}"
            if kind.startswith("?"):
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field_name}")
    pool = DescriptorPool()
    pool.Add(file)
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages
    }


ARROW_BYTES_MIN: Final = 12 * 1024
"""Smaller bodies are decoded record by record: Arrow takes 1.2 ms of CPU time whatever the size."""


def arrow_road(name: str, body: bytes) -> ModuleType | None:
    """Return the module that decodes a body through Arrow; None if it is small or not installed.

    The module is in this package. It raises `NotPlain` for a request that has to be mapped record
    by record.
    """
    return _module(name) if len(body) >= ARROW_BYTES_MIN else None


@cache
def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"sluice_doors.{name}")
    except ImportError:
        return None
