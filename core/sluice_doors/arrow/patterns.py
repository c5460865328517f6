"""Search lines for a regex of RE2, which takes linear time for any regex and line."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute


def compile_pattern(pattern: str) -> Callable[[Sequence[bytes]], npt.NDArray[np.bool_]]:
    """Return a function that returns for each of some lines whether the regex is in it.

    Raises:
        ValueError: The regex has an error.
    """

    def matches(lines: Sequence[bytes]) -> npt.NDArray[np.bool_]:
        found = compute.match_substring_regex(pa.array(lines, pa.large_binary()), pattern)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    matches([b""])  # pyarrow's error is a ValueError
    return matches
