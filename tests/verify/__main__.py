"""`make verify MINUTES=10`: run a cluster under faults on each store, and check the histories.

The seed is printed, and the history is kept in a folder that `verify.checking` checks again.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path

from verify.cluster import STORES
from verify.report import store_result
from verify.running import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="verify", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--store", choices=[*STORES], action="append")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--folder", type=Path, help="for logs and histories; default: a new one")
    parser.add_argument("--no-spark", action="store_true", help="ingest after the run")
    parser.add_argument("--fault", action="append", default=[], help="only these; default: all")
    parser.add_argument("--write", action="store_true", help="record it in docs/verification.md")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="verify-"))
    failed = False
    for store in options.store or STORES:
        place = folder / store
        place.mkdir(parents=True)
        print(f"verify store={store} seed={options.seed} folder={place}", flush=True)
        seconds = options.minutes * 60
        spark, faults = not options.no_spark, tuple(options.fault)
        result = asyncio.run(run(place, store, seconds, options.seed, spark=spark, faults=faults))
        print(json.dumps(result, indent=2), flush=True)
        if options.write:
            store_result(result)
        failed = failed or not result["passed"]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
