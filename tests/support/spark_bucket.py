"""A deployment in a bucket of the real S3 server."""

from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from support.spark_lake import Deployment

from sluice_lake.locations import lake_location


@dataclass
class Bucket(Deployment):
    """A deployment in a bucket."""

    bucket_url: str = ""

    @property
    def url(self) -> str:
        return self.bucket_url

    def table(self, name: str) -> DeltaTable:
        location = lake_location(self.url, name)
        return DeltaTable(location.uri, storage_options=dict(location.storage_options))

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pyarrow_table().to_pylist()
