import io

import pyarrow as pa
import pyarrow.parquet as pq

from sluice_spark.written_files import ROW_GROUP_ROWS, parquet_options

ATTRIBUTES = pa.map_(pa.string(), pa.string())


def column_of_values(values: list[str]) -> pq.ColumnChunkMetaData:
    """Write a row group of records with one attribute, and return the column of its values."""
    schema = pa.schema([("attributes", ATTRIBUTES)])
    rows = pa.table({"attributes": pa.array([[("key", one)] for one in values], ATTRIBUTES)})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, **parquet_options(schema)) as writer:
        writer.write_table(rows)
    written = pq.ParquetFile(sink)
    assert written.read().equals(rows)
    column = written.metadata.row_group(0).column(1)
    assert column.path_in_schema == "attributes.key_value.value"
    return column


def test_attributes_of_few_values_are_a_dictionary() -> None:
    """Each value is written once, and a record has its number."""
    column = column_of_values([f"/api/items/{n % 300}" for n in range(ROW_GROUP_ROWS)])
    assert "RLE_DICTIONARY" in column.encodings
    assert column.total_uncompressed_size < 2 * ROW_GROUP_ROWS


def test_ids_in_an_attribute_are_written_plainly_after_a_small_dictionary() -> None:
    ids = [f"{n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for n in range(ROW_GROUP_ROWS)]
    plain_bytes = sum(map(len, ids)) + 4 * len(ids)
    assert column_of_values(ids).total_uncompressed_size < 1.01 * plain_bytes
