"""Build a release: `python -m deploy.release [OUTPUT]`.

It writes the wheel, the sdist, a bill of materials, the release notes and their checksums. Wheel
and sdist are built twice and compared: the same commit always leads to the same bytes.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from deploy.programs import find_program
from sluice_protocol.errors import BadUsage

ROOT: Final = Path(__file__).parents[1]
CHECKSUMS: Final = "SHA256SUMS"
_TOOLS: Final = Path("sluice") / "deploy-tools" / "venv" / "bin" / "cyclonedx-py"


def notes_of(changelog: str, version: str) -> str:
    """Return the changelog's section of a version; `Unreleased` for one without a tag."""
    found = re.search(
        rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)",
        changelog,
        re.MULTILINE | re.DOTALL,
    )
    if found is None or not found[1].strip():
        raise BadUsage(f"no section in CHANGELOG.md: write `## [{version}]`, version=`{version}`")
    return found[1].strip() + "\n"


def check_tag(tags: Iterable[str], version: str) -> bool:
    """Return True if the commit has the tag of this version; refuse that of another one."""
    releases = [tag for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+\S*", tag)]
    if releases and f"v{version}" not in releases:
        raise BadUsage(
            "the tag differs from the version: change `version` in pyproject.toml or the tag,"
            f" tags=`{' '.join(releases)}`, version=`{version}`"
        )
    return bool(releases)


def checksum_lines(files: Iterable[Path]) -> str:
    """Return the lines that `sha256sum --check` reads, sorted by name."""
    lines = (
        f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n"
        for one in sorted(files, key=lambda path: path.name)
    )
    return "".join(lines)


def _git(*words: str) -> str:
    done = subprocess.run(  # noqa: S603 - the arguments are constants
        (find_program("git"), *words), cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def build(source: Path, folder: Path, epoch: str) -> list[Path]:
    """Build wheel and sdist of a folder; `epoch` is the time of every file in them."""
    subprocess.run(  # noqa: S603 - the arguments are constants
        (find_program("uv"), "build", "--quiet", "--out-dir", str(folder), str(source)),
        check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch, "UV_NO_PROGRESS": "1"},
    )
    return sorted(one for one in folder.iterdir() if one.suffix in (".whl", ".gz"))


def export_commit(folder: Path) -> Path:
    """Write the files of the commit into a folder: untracked files must not change the bytes."""
    archive = folder / "source.tar"
    _git("archive", "--format=tar", f"--output={archive}", "HEAD")
    source = folder / "source"
    source.mkdir()
    shutil.unpack_archive(archive, source, filter="data")
    return source


def _bill_of_materials(output: Path) -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    tool = cache / _TOOLS
    if not tool.exists():
        raise BadUsage(f"missing program: run `deploy/tools.sh`, program=`{tool}`")
    subprocess.run(  # noqa: S603 - the arguments are constants
        (
            *(str(tool), "requirements", "requirements.lock", "--pyproject", "pyproject.toml"),
            *("--output-reproducible", "--of", "JSON", "-o", str(output)),
        ),
        cwd=ROOT,
        check=True,
    )


def release(output: Path) -> list[Path]:
    """Write all files of a release into a folder that does not exist, and return them.

    The checkout must have no changes, and both builds must have the same bytes.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = project["version"]
    tagged = check_tag(_git("tag", "--points-at", "HEAD").split(), version)
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version if tagged else "Unreleased")
    if _git("status", "--porcelain", "--untracked-files=no"):
        raise BadUsage("the checkout has changes: commit them, a release is built from a commit")
    try:
        output.mkdir(parents=True)
    except FileExistsError as error:
        raise BadUsage(f"folder exists: remove it, path=`{output}`") from error
    epoch = _git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as scratch:
        source = export_commit(Path(scratch))
        built = build(source, output, epoch)
        again = build(source, Path(scratch) / "again", epoch)
        if checksum_lines(built) != checksum_lines(again):
            raise BadUsage(f"two builds differ: see {scratch}, path=`{output}`")
    bill = output / f"{project['name']}-{version}.cdx.json"
    _bill_of_materials(bill)
    text = output / "RELEASE_NOTES.md"
    text.write_text(notes)
    files = [*built, bill, text]
    (output / CHECKSUMS).write_text(checksum_lines(files))
    return [*files, output / CHECKSUMS]


def main(arguments: list[str]) -> int:
    """Build the release into the folder of the argument, by default `dist`."""
    try:
        for one in release(Path(arguments[0] if arguments else "dist").resolve()):
            sys.stdout.write(f"{one}\n")
    except BadUsage as error:
        sys.stderr.write(f"cannot build the release: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
