"""`sluice support`: collect what a report about a fault needs, without secrets."""

import asyncio
import io
import os
import platform
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from cyclopts import App

from sluice_cli.deployment.redaction import is_secret_option, remove_secrets
from sluice_cli.shell.options import STORE_DEFAULT, Json, StoreUrl
from sluice_cli.shell.output import emit, json_line
from sluice_protocol.errors import BadUsage, SluiceError

app = App(name="support", help="Collect what a report about a fault needs.")

LOG_BYTES_MAX: Final = 4 << 20
_HOME: Final = Path(".sluice-up")
_SECRET_FILES: Final = ("token", "principals.toml", "agent.pem", "auditor.pem")


@app.command
def bundle(
    *,
    store: StoreUrl = STORE_DEFAULT,
    output: Path = Path("sluice-support.tar.gz"),
    home: Path = _HOME,
    json: Json = False,
) -> None:
    """Write an archive with the status, settings, versions and the end of the log.

    Keys, tokens and passwords are removed. Records are never read.

    Args:
        store: The store of the deployment.
        output: The archive; it must not exist.
        home: The folder of `sluice up`, for its log.
        json: Print JSON for programs.
    """
    known = tuple(_known_secrets(home))
    files = {
        name: remove_secrets(text, known)
        for name, text in (
            ("status.json", _status(store)),
            ("settings.json", _settings()),
            ("versions.json", _versions()),
            ("up.log", _log_end(home / "up.log")),
        )
    }
    _write(output, files)
    sizes = {name: len(text) for name, text in files.items()}
    emit(
        {"path": str(output), "files": sizes},
        as_json=json,
        human=lambda console: console.print(f"wrote {output}: {', '.join(sizes)}", markup=False),
    )


def _status(store: str) -> str:
    from sluice_cli.deployment.facts import read_facts  # noqa: PLC0415 - quick help

    try:
        facts = asyncio.run(read_facts(store))
    except SluiceError as error:  # the reason is what the report is about
        return json_line({"store": store, "problem": str(error)})
    return json_line({"store": store, "facts": facts})


def _settings() -> str:
    from sluice_cli.config_show import list_settings  # noqa: PLC0415 - imports every command

    return json_line([one for one in list_settings() if one.origin != "default"])


def _versions() -> str:
    packages = {one.metadata["Name"]: one.version for one in distributions()}
    return json_line(
        {
            "python": sys.version,
            "platform": platform.platform(),
            "packages": dict(sorted(packages.items())),
            "variables": sorted(name for name in os.environ if name.startswith("SLUICE_")),
        }
    )


def _log_end(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_BYTES_MAX))
            return log.read(LOG_BYTES_MAX).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise BadUsage(f"cannot read the log: {error.strerror}, path=`{path}`") from error


def _known_secrets(home: Path) -> Iterator[str]:
    """Yield the values that must not be in the archive, from this machine's files and variables."""
    for name in _SECRET_FILES:
        try:
            text = (home / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield from (part for part in text.replace('"', "\n").split() if len(part) >= 24)  # noqa: PLR2004 - keys
    for name, value in os.environ.items():
        if is_secret_option(name) or name.startswith("AWS_"):
            yield value


def _write(output: Path, files: dict[str, str]) -> None:
    try:
        with output.open("xb") as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
            for name, text in files.items():
                body = text.encode()
                member = tarfile.TarInfo(f"sluice-support/{name}")
                member.size = len(body)
                member.mode = 0o600
                archive.addfile(member, io.BytesIO(body))
    except FileExistsError as error:
        raise BadUsage(f"file exists: choose another --output, path=`{output}`") from error
    except OSError as error:
        raise BadUsage(f"cannot write: {error.strerror}, path=`{output}`") from error
