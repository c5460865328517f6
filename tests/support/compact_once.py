"""A process that compacts a store once, so that a test can end it at a fail point."""

import json
import sys

from sluice_spark.compact import run_compact
from sluice_spark.session import SessionSettings, open_session
from sluice_spark.settings import CompactSettings

if __name__ == "__main__":
    session = open_session(SessionSettings(driver_memory="1g"), delta=False)
    names = tuple(json.loads(sys.argv[2]))
    run_compact(session, sys.argv[1], CompactSettings(open_partitions=True, dedupe=names))
