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
        self._file_state = self._seen_state = _file_state(path)
        self.current = read_principals(path)
        self.failed = False

    def reload(self) -> bool:
        """Read the file again where it changed; keep the last content where it is not valid.

        A program may write the file in several steps, and what is there between two of them can be
        valid. So a change counts once two calls in a row see the same state of the file. A file
        without any principal is not valid here: it was rather cut off than meant to refuse all.

        Returns:
            Whether new content is in effect.
        """
        state = _file_state(self._path)
        is_settled, self._seen_state = state == self._seen_state, state
        if state == self._file_state or not is_settled:
            return False
        self._file_state = state
        try:
            self.current = _read_some(self._path)
        except BadUsage as error:
            self.failed = True
            log.error("principals_invalid", reason=str(error))  # noqa: TRY400 - a typo needs no traceback
            return False
        self.failed = False
        log.info("principals_reloaded", keys=len(self.current.keys))
        return True


def _read_some(path: Path) -> Principals:
    found = read_principals(path)
    if not found.names:
        raise BadUsage(
            "principals file contains no principal: write it again, or stop the gateway to refuse"
            f" everybody, path=`{path}`"
        )
    return found


def _file_state(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
