"""The interpreter of Spark's Python processes: this one, with the pyspark of site-packages.

Spark puts `pyspark.zip` first in the `PYTHONPATH` of every Python process that it starts. The
archive contains no compiled modules, so each process compiles them again. A streaming query starts
such a process, whose import of the data source took twice as long.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_LAUNCHER: Final = Path(__file__).parent / "site_python.sh"
_INTERPRETER: Final = "SPARK_SITE_PYTHON"
"""The variable that contains the interpreter for the launcher."""
_VARIABLES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@contextmanager
def site_python(master: str) -> Iterator[None]:
    """Set the interpreter of Spark's Python processes while a session is started.

    An interpreter other than this one is left as it is, and so is that of a cluster, whose
    executors may not have the launcher.
    """
    configured = [os.environ.get(name) for name in _VARIABLES]
    if not (
        master.startswith("local") and all(map(_is_this, configured)) and _runs_installed_spark()
    ):
        yield
        return
    before = dict(zip(_VARIABLES, configured, strict=True))
    os.environ |= dict.fromkeys(_VARIABLES, str(_LAUNCHER)) | {_INTERPRETER: sys.executable}
    try:
        yield
    finally:
        for name, value in {**before, _INTERPRETER: None}.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _is_this(configured: str | None) -> bool:
    """Return True if a configured interpreter is this one, under any name of its folder."""
    if configured is None:
        return True
    other, this = Path(configured).absolute(), Path(sys.executable).absolute()
    return other.parent == this.parent and other.exists() and other.samefile(this)


def _runs_installed_spark() -> bool:
    """Return True if the JVM is that of the installed pyspark, and the launcher can be run."""
    found = find_spec("pyspark")
    if found is None or found.origin is None or not os.access(_LAUNCHER, os.X_OK):
        return False
    home = os.environ.get("SPARK_HOME")
    return home is None or Path(home).resolve() == Path(found.origin).parent.resolve()
