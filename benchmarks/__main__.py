"""`make bench`: run every benchmark, or those named on the command line, in separate processes."""

import pkgutil
import subprocess
import sys
from pathlib import Path

HELPERS = {
    *("__main__", "measure", "accept_load", "accept_servers"),
    "doors_bodies",
    "query_engines",
    *("end_to_end_roles", "manifests", "older_manifests"),
    *("peer_agents", "peer_figures", "peer_requests", "peer_servers"),
    "peers",  # `make bench-peers` runs it, because it builds and runs other servers
    *("pipeline_batches", "reconcile_steady", "reconcile_world"),
    "scale",  # `make scale` runs it, because it takes as long as the others together
}


def main(named: list[str]) -> int:
    """Run the benchmarks in turn; return 1 if any of them failed."""
    found = [one.name for one in pkgutil.iter_modules([str(Path(__file__).parent)])]
    names = named or [name for name in found if name not in HELPERS]
    failed = [
        name for name in names if subprocess.call([sys.executable, "-m", f"benchmarks.{name}"])
    ]
    for name in failed:
        print(f"benchmark failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
