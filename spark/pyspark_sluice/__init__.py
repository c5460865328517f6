"""The Spark data source sluice, found by Spark itself."""
