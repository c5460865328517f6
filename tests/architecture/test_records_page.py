"""The page of stored records names each of them, with what its readers do."""

import msgspec
import pytest
from deploy import records_page
from deploy.records_page import render_records, stored_records

from sluice_protocol.errors import BadUsage


def test_each_schema_belongs_to_one_class_and_one_entry() -> None:
    schemas = [
        one.default
        for kind in stored_records()
        for one in msgspec.structs.fields(kind)
        if one.name == "schema"
    ]
    assert len(schemas) > 30
    assert sorted(set(schemas)) == sorted(schemas)
    headings = [line for line in render_records().splitlines() if line.startswith("## ")]
    assert headings == [f"## `{one}`" for one in sorted(schemas)]


def test_a_record_without_a_key_is_not_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new record cannot be stored at a place that no page states."""
    kept = {name: key for name, key in records_page._KEYS.items() if name != "sluice.delete"}
    monkeypatch.setattr(records_page, "_KEYS", kept)
    with pytest.raises(BadUsage, match=r"sluice\.delete"):
        render_records()


def test_an_entry_names_types_meanings_and_strict_readers() -> None:
    page = render_records()
    entry = page.partition("## `sluice.active_deletes.v1`")[2].partition("\n## ")[0]
    assert "At `reconciler/v1/active-deletes.json`." in entry
    assert "Readers refuse unknown fields." in entry
    assert "| `records` | list of `sluice.delete.v1` |" in entry
    assert "| `nonce` | text | New with each write" in entry
