"""Build the checkers of histories with Go, and run them: `python -m verify.checking FOLDER …`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKERS = ("register", "lanes", "facts")


def build_checkers(folder: Path) -> Path:
    """Build the program of the checkers, and return its path."""
    program = folder / "checkers"
    subprocess.run(
        ["go", "build", "-trimpath", "-o", str(program), "."],
        cwd=Path(__file__).parent / "checkers",
        check=True,
        timeout=600,
    )
    return program


def check_history(program: Path, checker: str, folder: Path) -> dict[str, Any]:
    """Run one checker over a history, and return its verdict."""
    done = subprocess.run(
        [str(program), checker, str(folder)],
        capture_output=True,
        check=False,
        text=True,
        timeout=1800,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.strip())
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def main() -> None:
    """Check each given history, print the verdicts, and exit with 1 if one has a violation."""
    broken = 0
    for name in sys.argv[1:]:
        folder = Path(name)
        program = build_checkers(folder)
        for checker in CHECKERS:
            verdict = check_history(program, checker, folder)
            broken += verdict["broken"]
            print(json.dumps({"history": folder.name, **verdict}))
        program.unlink()
    sys.exit(1 if broken or not sys.argv[1:] else 0)


if __name__ == "__main__":
    main()
