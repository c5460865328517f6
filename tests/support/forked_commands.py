"""Commands of `sluice` in forks of one interpreter: which modules they import or miss.

A start of Python for each command would need most of the processor time of such a test.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# Reads one request a line, and responds with one line. The child has the files of the request as
# its output; it reports its modules through a pipe.
SERVER = """
import json, os, signal, sys

class Block:
    def __init__(self, packages): self.packages = packages
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages or name in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

class StopWhenReady:
    def __init__(self, stream, event): self.stream, self.event = stream, event
    def __getattr__(self, name): return getattr(self.stream, name)
    def write(self, text):
        written = self.stream.write(text)
        if self.event in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return written

def run(request, report):
    os.chdir(request["folder"])
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if request["until"]:
        sys.stdout = StopWhenReady(sys.stdout, request["until"])
        sys.stderr = StopWhenReady(sys.stderr, request["until"])
    sys.meta_path.insert(0, Block(request["blocked"]))
    before = set(sys.modules)
    code = 1
    try:
        from sluice_cli.main import run
        code = run(request["arguments"])
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        loaded = [name for name, module in sys.modules.items() if module is not None]
        os.write(report, json.dumps(sorted(set(loaded) - before)).encode())
        os._exit(code)

for name in sys.argv[1:]:
    __import__(name)
for line in sys.stdin:
    request = json.loads(line)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        run(request, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        modules = json.loads(pipe.read() or b"[]")
    _, status = os.waitpid(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), modules]), flush=True)
"""
# What every installation has and many commands import.
BASE = (
    "asyncio",
    "aiohttp.web",
    "cyclopts",
    "numpy",
    "prometheus_client",
    "rich.console",
    "structlog",
)


@dataclass(frozen=True)
class Done:
    """A command that has ended, and the modules that it has imported."""

    returncode: int
    stdout: str
    stderr: str
    modules: frozenset[str]


class Interpreter:
    """An interpreter that runs each command in a fork of itself."""

    def __init__(self, *preloaded: str) -> None:
        """Start it.

        Args:
            preloaded: Modules that it imports once; they are not among the modules of a command.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # numpy starts a thread for each core, and a fork has only one thread.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        _pipe(self._process.stdin).close()
        self._process.wait(timeout=60)
        _pipe(self._process.stdout).close()

    def run(
        self, folder: Path, *arguments: str, blocked: Sequence[str] = (), until: str = ""
    ) -> Done:
        """Run a command.

        Args:
            folder: Its working directory.
            arguments: The words behind `sluice`.
            blocked: Packages and modules that it cannot import.
            until: Stop it with SIGTERM when it prints this; empty if it ends without.
        """
        outputs = [folder / ".stdout", folder / ".stderr"]
        request = {
            "folder": str(folder),
            "arguments": arguments,
            "blocked": blocked,
            "until": until,
            "stdout": str(outputs[0]),
            "stderr": str(outputs[1]),
        }
        requests, responses = _pipe(self._process.stdin), _pipe(self._process.stdout)
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        code, modules = json.loads(responses.readline())
        stdout, stderr = (path.read_text() for path in outputs)
        return Done(code, stdout, stderr, frozenset(modules))


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
