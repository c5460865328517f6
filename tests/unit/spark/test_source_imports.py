"""What the data source imports: Spark starts a Python process for it with each query."""

import subprocess
import sys

EXPENSIVE = ("aiohttp", "botocore", "cryptography", "deltalake", "duckdb", "rich", "structlog")


def test_the_data_source_imports_no_expensive_package() -> None:
    """Each would delay the first micro-batch of every query."""
    code = f"import sys, pyspark_sluice; print([n for n in {EXPENSIVE} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
