"""The columns of a payload in each frame version (`docs/protocol.md`, Frame).

Version 1 has times and offsets, which rise with each record, so equal records have no equal bytes.
Version 2 has the differences between times, and lengths instead of offsets; a compressor then finds
most of them repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice_protocol.manifests import Kind
from sluice_protocol.short_cbor import ShortForm, ShortKey, short_keys

TAG_OF: Final = {"<u1": 64, "<u4": 70, "<i4": 78, "<i8": 79, "<f8": 86}
"""RFC 8746 tags of the little-endian arrays."""
BYTES: Final = "bytes"
TEXTS: Final = "texts"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PayloadLayout:
    """The columns of one frame version.

    Attributes:
        has_differences: Whether `ts` has differences, and each column of strings has lengths.
        forms: The form of each column, by kind and name: a type of numbers, `BYTES` or `TEXTS`.
        keys: The same for the reader of small payloads.
    """

    has_differences: bool
    forms: Mapping[Kind, Mapping[str, str]]
    keys: Mapping[Kind, tuple[ShortKey, ...]]

    def ends_name(self, name: str) -> str:
        """Return the name of the column that states where each value of `name` ends."""
        return f"{name}_len" if self.has_differences else f"{name}_off"


def _forms(ends: str, form: str) -> dict[Kind, dict[str, str]]:
    attributes = {
        "attr_names": TEXTS,
        f"attr_{ends}": form,
        "attr_key": "<u4",
        f"attr_val_{ends}": form,
        "attr_val": BYTES,
    }
    logs = {"ts": "<i8", f"body_{ends}": form, "body": BYTES, "severity": "<u1"}
    metrics = {"ts": "<i8", "names": TEXTS, "name": "<u4", "value": "<f8", "type": "<u1"}
    entries = {f"key_{ends}": form, "key": BYTES, f"val_{ends}": form, "val": BYTES, "ts": "<i8"}
    return {"logs": logs | attributes, "metrics": metrics | attributes, "entries": entries}


def _short(forms: Mapping[str, str]) -> tuple[ShortKey, ...]:
    return short_keys(
        (name, ShortForm.TEXTS if form == TEXTS else ShortForm.BYTES, TAG_OF.get(form))
        for name, form in forms.items()
    )


def _layout(forms: Mapping[Kind, Mapping[str, str]], *, has_differences: bool) -> PayloadLayout:
    keys = {kind: _short(columns) for kind, columns in forms.items()}
    return PayloadLayout(has_differences=has_differences, forms=forms, keys=keys)


LAYOUTS: Final[Mapping[int, PayloadLayout]] = {
    1: _layout(_forms("off", "<i4"), has_differences=False),
    2: _layout(_forms("len", "<u4"), has_differences=True),
}
"""The layout of each frame version."""
