"""The resource of a request as attributes of its records, for frames of several requests."""

from dataclasses import replace

from sluice_doors.decoded import DecodedRecords
from sluice_doors.otlp_attributes import OWN, RESOURCE, merged
from sluice_protocol.ndjson import attribute_rows
from sluice_protocol.records import attribute_columns


def with_resource_in_records(records: DecodedRecords) -> DecodedRecords:
    """Return the records without a resource, each with its pairs as attributes.

    A record's attribute keeps its name; the other value is renamed `resource.<key>`.
    """
    if not records.resource:
        return records
    rows = [
        merged([(OWN, list(row.items())), (RESOURCE, records.resource)])
        for row in attribute_rows(records.columns.attributes, len(records.columns))
    ]
    columns = replace(records.columns, attributes=attribute_columns(rows))
    return replace(records, columns=columns, resource=())
