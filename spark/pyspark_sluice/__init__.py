"""The Spark data source `sluice`; Spark finds this module by its name and its `DefaultSource`."""

from pyspark_sluice.source import SluiceSource

DefaultSource = SluiceSource

__all__ = ["DefaultSource", "SluiceSource"]
