"""The script that `spark-submit` is given; see `sluice spark script`."""
