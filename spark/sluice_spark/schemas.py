"""Spark schemas of the lake's tables."""

import json
from typing import Any

from sluice_lake.schemas import schema_json
from sluice_lake.tables import Table


def spark_schema(table: Table) -> Any:  # noqa: ANN401 - pyspark is untyped here
    """Return a table's schema as Spark's `StructType`."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - executors write without pyspark

    return StructType.fromJson(json.loads(schema_json(table)))
