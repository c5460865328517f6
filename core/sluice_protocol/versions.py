"""The choice of a decoder by the version that a stored or sent object states.

Each format has one table from version to decoder. A new version is one more row, so that a build
reads the old and the new version next to each other.
"""

from collections.abc import Mapping
from typing import TypeVar

from sluice_protocol.errors import UnsupportedVersion

_Decoder = TypeVar("_Decoder")
_Version = TypeVar("_Version", int, str)


def decoder_for(
    decoders: Mapping[_Version, _Decoder], version: _Version, *, field: str, key: str = ""
) -> _Decoder:
    """Return the decoder of a version.

    Args:
        decoders: The decoders that this build has, by version.
        version: The version that the object states.
        field: The field that contains the version.
        key: Key of the object; empty for a frame that has no key yet.

    Raises:
        UnsupportedVersion: This build has no decoder for the version.
    """
    decoder = decoders.get(version)
    if decoder is None:
        raise UnsupportedVersion(field, version, tuple(decoders), key)
    return decoder
