"""Named places at which a test may end the process, as a crash would: `SLUICE_FAILPOINT=name:n`.

| name | place |
|---|---|
| `before_write` | a micro-batch is planned, nothing is written |
| `after_write` | data files are written, nothing is committed |
| `after_dead_letters` | dead letters are committed |
| `before_records_<kind>` / `after_records_<kind>` | around the commit of a record table |
| `before_ledger` / `after_ledger` | around the commit of the ledger |
| `before_ack` / `after_ack` | around the acknowledgement of the queue |
| `compact_*` | the same around the commits of compaction |
"""

import os
from typing import Final

FAILPOINT_VARIABLE: Final = "SLUICE_FAILPOINT"
FAILPOINT_EXIT_CODE: Final = 86

_reached: dict[str, int] = {}


def reach(name: str) -> None:
    """Ends the process at once when the failpoint names this place and this visit of it.

    Without `SLUICE_FAILPOINT` it does nothing. `name` ends it at the first visit, `name:3` at the
    third.
    """
    wanted = os.environ.get(FAILPOINT_VARIABLE)
    if wanted is None:
        return
    place, _, visit = wanted.partition(":")
    if place != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] >= int(visit or 1):
        os._exit(FAILPOINT_EXIT_CODE)
