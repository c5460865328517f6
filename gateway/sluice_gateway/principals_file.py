"""The principals file on disk: read at the start, and again when it changes.

While the file is invalid, its last valid content stays in effect.
"""

from pathlib import Path
from typing import Final

import structlog

from sluice_gateway.principals import Principals, parse_principals
from sluice_protocol.errors import BadUsage

FILE_BYTES_MAX: Final = 16 * 1024 * 1024

log = structlog.get_logger()


def read_principals(path: Path) -> Principals:
    """Read the file at `path`.

    Raises:
        BadUsage: It cannot be read, is too large, or is not valid.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BadUsage(f"principals file is larger than {FILE_BYTES_MAX} bytes, path=`{path}`")
        return parse_principals(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadUsage(
            "no principals file: `sluice token create` and `sluice agent init` print entries for"
            f" it, or set `principals` to another path, path=`{path}`"
        ) from error
    except OSError as error:
        raise BadUsage(
            f"cannot read principals file: {error.strerror}; correct the path or its permissions,"
            f" path=`{path}`"
        ) from error
    except UnicodeDecodeError as error:
        raise BadUsage(f"principals file is not UTF-8: {error}, path=`{path}`") from error


class PrincipalsFile:
    """The file on disk and its last valid content, which is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        """Read the file for the first time.

        Raises:
            BadUsage: It is not valid; a gateway does not start without it.
        """
        self._path = path
        self._file_state = _file_state(path)
        self.current = read_principals(path)
        self.failed = False

    def reload(self) -> bool:
        """Read the file again where it changed; keep the last content where it is not valid.

        Returns:
            Whether new content is in effect.
        """
        stamp = _file_state(self._path)
        if stamp == self._file_state:
            return False
        self._file_state = stamp
        try:
            self.current = read_principals(self._path)
        except BadUsage as error:
            self.failed = True
            log.error("principals_invalid", reason=str(error))  # noqa: TRY400 - a typo needs no traceback
            return False
        self.failed = False
        log.info("principals_reloaded", keys=len(self.current.keys))
        return True


def _file_state(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
