"""Render the page of stored records from the classes that encode them.

A record is a class with a field `schema`. Its page entry has the key, the docstring, and its fields
with those of the structures inside.
"""

import ast
import importlib
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Final, Literal, get_args, get_origin

import msgspec
from docstring_parser import DocstringStyle, parse

from deploy.page_sections import markdown_table
from sluice_protocol.errors import BadUsage

ROOT: Final = Path(__file__).parents[1]
_OTHERS: Final = (".venv", "tests", "benchmarks", "deploy")
_HEAD: Final = """\
# Stored records

This page is generated from the code by `make docs`.

Records are JSON in UTF-8, with sorted keys and without spaces. `schema` is the name in the heading
of a record, and the number at its end is its version. Readers ignore unknown fields, unless the
entry states that they refuse them; writers write none. Times that end in `_unix_ns` are Unix ns.
The [protocol](../protocol.md) has the rules about them, and the formats that are not JSON.
"""
_KEYS: Final = {
    "lightmetrics.accepted_batch": "accepted/v1/agent=…/boot=…/<start>-<end>.json",
    "lightmetrics.blob_reference": "accepted-by-blob/v1/…, quarantine-by-blob/v1/…",
    "lightmetrics.identity_conflict": "quarantine/v1/identity-conflict/…/<sha256>.json",
    "lightmetrics.work_list": "manifests/v1/date=…/hour=…/<manifest-id>.json",
    "sluice.acceptance_journal": "gateways/v1/journals/<process>/<number>.ndjson, first line",
    "sluice.active_deletes": "reconciler/v1/active-deletes.json",
    "sluice.applied_deletes": "lake/v1/applied-deletes/<table>.json",
    "sluice.audit_certificate": "audit/v1/<audit>/certificate.json",
    "sluice.authority": "authority/v1/settings.json",
    "sluice.restore": "authority/v1/restores/<number>.json",
    "sluice.authority_switch": "authority/v1/switches/<number>.json",
    "sluice.lane_change": "authority/v1/lanes/<number>.json",
    "sluice.decision": "decisions/v1/<decision_id>.json",
    "sluice.delete": "deletes/v1/<ulid>.json",
    "sluice.doctor": "the text inside sluice.doctor_stored",
    "sluice.doctor_stored": "doctor/v1/results/<time>-<ulid>.json",
    "sluice.gateway_process": "gateways/v1/processes/<process>.json",
    "sluice.erasure": "retention/v1/erasures/<ulid>/decision.json, signed",
    "sluice.erasure_report": "retention/v1/erasures/<ulid>/report-<number>.json, signed",
    "sluice.gc_approval": "gc/v1/approvals/<plan>.json",
    "sluice.gc_batch": "gc/v1/plans/<plan>/done/<first>-<number>.json",
    "sluice.gc_plan": "gc/v1/plans/<plan>/plan.json",
    "sluice.gc_stopped": "gc/v1/plans/<plan>/stopped.json",
    "sluice.high_water": "reconciler/v1/high-water/agent=…/boot=….json",
    "sluice.index": "index/v1/<table>/date=…/hour=…/<chunk>.lmindex, its head",
    "sluice.index_check": "reconciler/v1/index-check.json",
    "sluice.index_progress": "index/v1/<table>/progress.json",
    "sluice.transfer_marker": "transferred/v1/… of a spool",
    "sluice.legal_hold": "retention/v1/holds/<ulid>.json",
    "sluice.legal_hold_lifted": "retention/v1/holds/<ulid>-lifted.json",
    "sluice.maintenance_task": "maintain/v1/tasks/<task>.json",
    "sluice.packed_deletes": "lake/v1/deletes.json.z",
    "sluice.promotion": "promotions/v1/<kind>/<column>.json",
    "sluice.retention": "retention/v1/decisions/<number>.json",
    "sluice.reconciler_discovery": "reconciler/v1/discovery.json",
    "sluice.reconciler_lane": "reconciler/v1/lanes/<queue>.<lane>, in one zstd frame",
    "sluice.hold_record": "reconciler/v1/held/<sha256 of the held key>.json",
    "sluice.reconciler_member": "reconciler/v1/members/<ulid>.json",
    "sluice.reconciler_pass": "reconciler/v1/full-pass.json",
    "sluice.reconciler_pass_left": "reconciler/v1/full-pass-left.json",
    "sluice.reconciler_scanner": "reconciler/v1/scanner.json",
    "sluice.source_range": "rollup/v1/source-ranges/<number>.json",
    "sluice.tombstone": (
        "expired/v1/date=…/hour=…/<first hour>-<run>-<part>.json.z, signed and compressed"
    ),
    "sluice.spool_claim": "authority/v1/spool.json, in the authority and in the spool",
    "sluice.spool_expired": "transferred/v1/expired/agent=…/boot=….json of a spool",
    "sluice.spool_journal": "transferred/v1/journal.json of a spool",
}
"""Where each record is stored."""


def render_records() -> str:
    """Return the page of all records, sorted by their schemas."""
    found = {_schema_of(one): one for one in stored_records()}
    names = {schema.rpartition(".v")[0] for schema in found}
    if names != {*_KEYS}:
        raise BadUsage(f"each record has a key in this module: {sorted(names ^ {*_KEYS})}")
    return _HEAD + "".join(_entry(schema, found[schema]) for schema in sorted(found))


def stored_records() -> Iterator[type[msgspec.Struct]]:
    """Yield the public classes of the product with a field `schema`."""
    for path in sorted(ROOT.glob("*/**/*.py")):
        place = path.relative_to(ROOT)
        if place.parts[0] in _OTHERS or "schema: Literal" not in path.read_text(encoding="utf-8"):
            continue
        module = importlib.import_module(".".join(place.with_suffix("").parts[1:]))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                kind = getattr(module, node.name)
                if "schema" in getattr(kind, "__struct_fields__", ()):
                    yield kind


def _schema_of(kind: type[msgspec.Struct]) -> str:
    (schema,) = (one.default for one in msgspec.structs.fields(kind) if one.name == "schema")
    return str(schema)


def _entry(schema: str, kind: type[msgspec.Struct]) -> str:
    parts = [f"\n## `{schema}`\n\n", f"At `{_KEYS[schema.rpartition('.v')[0]]}`.\n\n"]
    parts.append(_described(kind))
    parts += [f"\n**{one.__name__}.** {_described(one)}" for one in _inside(kind, set())]
    return "".join(parts)


def _described(kind: type[msgspec.Struct]) -> str:
    """Return the docstring of a class, and the table of its fields."""
    parsed = parse(kind.__doc__ or "", style=DocstringStyle.GOOGLE)
    meanings = {one.args[-1]: _shown(one.description or "") for one in parsed.meta if one.args}
    text = "\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))
    text = _shown(text)
    rows = [
        (f"`{one.encode_name}`", _words(one.type), meanings.get(one.name, ""))
        for one in msgspec.structs.fields(kind)
        if one.name != "schema"
    ]
    if not any(meaning for *_, meaning in rows):
        shown = markdown_table(("field", "type"), (row[:2] for row in rows))
    else:
        shown = markdown_table(("field", "type", "meaning"), iter(rows))
    config = kind.__struct_config__
    text += " Readers refuse unknown fields." if config.forbid_unknown_fields else ""
    text += " An array of:" if config.array_like else ""
    return f"{text}\n\n{shown}"


def _shown(text: str) -> str:
    """Return a text of a docstring as JSON calls the value."""
    return re.sub(r"\bNone\b", "null", text)


def _inside(kind: type[msgspec.Struct], seen: set[type]) -> Iterator[type[msgspec.Struct]]:
    """Yield the structures in the fields of a class, except other records."""
    waiting = [one.type for one in msgspec.structs.fields(kind)]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            if one not in seen and "schema" not in one.__struct_fields__:
                seen.add(one)
                yield one
                yield from _inside(one, seen)
        else:
            waiting += [part for part in get_args(one) if part is not ...]


_PLAIN: Final[dict[object, str]] = {
    int: "integer",
    str: "text",
    bool: "boolean",
    float: "number",
    NoneType: "null",
    msgspec.UnsetType: "optional",
}


def _words(kind: object) -> str:
    """Return a type in words."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is None:
        return _word(kind)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inside)
    words = [_words(one) for one in inside if one is not ...]
    if origin is dict:
        return f"map of {words[1]}"
    if origin is tuple:
        return f"list of {words[0]}" if ... in inside else f"[{', '.join(words)}]"
    return " or ".join(words).replace(" or optional", ", optional")


def _word(kind: object) -> str:
    """Return a type without parameters in words."""
    kind = getattr(kind, "__supertype__", kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return ", ".join(f"`{one}`" for one in kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"`{_schema_of(kind)}`" if "schema" in kind.__struct_fields__ else kind.__name__
    raise BadUsage(f"the page of records has no words for a type: add them, type={kind}")
