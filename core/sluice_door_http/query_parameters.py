"""Which query parameters of a request a door accepts.

A door that imitates another product ignores the parameters of that product which it does not read,
because real clients send them: `pretty`, `timeout`, `filter_path`, `refresh`. A name that is almost
one that the door reads is a typing error. Ignoring it would store records in another way than their
sender wants, so it is refused.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from yarl import URL

from sluice_doors.decoded import BodyUnreadable

QUERIES_MAX: Final = 256
"""Queries that are remembered; most clients always send the same."""
_TYPING_ERROR: Final = 0.75
"""Similarity from which a name is a typing error. `type` and `op_type`, both names of
Elasticsearch, have 0.73; `hots` and `host` 0.75."""
_HINT: Final = 0.5
"""Similarity from which a name is worth a hint where it is refused anyway."""


@lru_cache(maxsize=QUERIES_MAX)
def check_query(query: str, known: Sequence[str], *, ignores_others: bool) -> None:
    """Check the names of the query parameters of a request.

    Args:
        query: The query of its URL, as it was sent.
        known: The parameters that the door reads.
        ignores_others: Whether other parameters are ignored, unless they are similar to these.

    Raises:
        BodyUnreadable: A parameter is not known, or one of `known` is given twice.
    """
    named = URL.build(query_string=query, encoded=True).query
    cutoff = _TYPING_ERROR if ignores_others else _HINT
    for name in named:
        if name in known:
            continue
        (likely, *_) = (*get_close_matches(name, known, n=1, cutoff=cutoff), "")
        if likely or not ignores_others:
            hint = f"; did you mean {likely}?" if likely else f"; use {' or '.join(known)}"
            raise BodyUnreadable(f"parameter is not known, parameter=`{name[:40]}`{hint}")
    twice = next((name for name in known if len(named.getall(name, ())) > 1), None)
    if twice is not None:
        raise BodyUnreadable(f"parameter is given twice, parameter=`{twice}`")
