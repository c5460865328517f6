"""The choice of a decoder by the version of a frame.

There is one table from version to decoder.
"""

from collections.abc import Mapping
from typing import TypeVar

from sluice_protocol.errors import UnsupportedVersion

_Decoder = TypeVar("_Decoder")


def decoder_for(decoders: Mapping[int, _Decoder], version: int, *, what: str) -> _Decoder:
    """Return the decoder of a version.

    Args:
        decoders: The decoders that this build has, by version.
        version: The version that the object states.
        what: The name of the structure.

    Raises:
        UnsupportedVersion: This build has no decoder for the version.
    """
    decoder = decoders.get(version)
    if decoder is None:
        raise UnsupportedVersion(what, version, max(decoders))
    return decoder
