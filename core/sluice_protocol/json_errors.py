"""What a decoder of JSON raises for input that it cannot read.

`msgspec.DecodeError` means damage or another shape, `UnicodeDecodeError` text that is not UTF-8,
and `RecursionError`, which is no `ValueError`, input that is nested too deeply. A handler that
leaves one of them out lets such input end its process.
"""

from typing import Final

import msgspec

UNREADABLE_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
