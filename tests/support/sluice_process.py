"""Processes of `sluice` that start as forks of an interpreter that has imported the product.

The interpreter and its imports are most of the processor time of a short command or a service that
a test stops after a second. A fork is a process like any other: it has its own memory, files,
signals and exit code, and its parent is the process of the test. Use `subprocess` where the start
itself, the command line in `/proc` or the memory of the process is what a test is about.

`python sluice_process.py DESCRIPTOR` is that interpreter. It ends with the process that started it.
"""

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

PRELOADED: Final = (
    "nacl.signing",
    "rich.console",
    "uvloop",
    "sluice_cli.gateway",
    "sluice_cli.reconciler",
    "sluice_agent.app",
    "sluice_gateway.process.worker",
    "sluice_reconciler.service",
    "support.constants",
)
"""What most commands import: none of it starts a thread, which a fork would not have."""
READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_")
"""Variables that an interpreter reads before it runs a program."""
_SET_CHILD_SUBREAPER: Final = 36  # prctl(2)
_REQUEST_MAX_BYTES: Final = 1 << 20
_STANDARD_FILES: Final = 3


class SluiceProcess(subprocess.Popen[Any]):
    """A `subprocess.Popen` that forks a command of `sluice`, and starts any other as usual."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Start the process; called by `Popen`, as in its source for Python 3.11."""
        (executable, preexec, _close, passed, cwd, env, _info, _flags, shell, *more) = rest
        pipes, (_restore, *unusual) = more[:6], more[6:]
        if (
            executable or preexec or passed or shell
            or tuple(unusual) != (None, None, None, -1, False, -1)
            or (words := _words_of(args)) is None
            or not _same_interpreter(env)
        ):  # fmt: skip
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        given = (pipes[0], pipes[3], pipes[5])
        files = [number if given[number] == -1 else given[number] for number in range(3)]
        request = {
            "words": words,
            "folder": os.fspath(cwd) if cwd else str(Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        self.pid = _started_server().fork(request, files)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run_process(
    command: Sequence[str], *, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end and return its output, as `subprocess.run` does."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    with SluiceProcess(command, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _words_of(command: Sequence[str]) -> list[str] | None:
    """Return the arguments of `support.constants` for a command, or None if it cannot be forked.

    A constant of a module may have been imported by another module already, and what a JVM costs
    makes the start of its driver irrelevant.
    """
    words = list(map(str, command))
    if words[:3] == [sys.executable, "-m", "sluice_cli"]:
        return None if words[3:4] == ["spark"] else ["--", *words[3:]]
    if words[:2] != [sys.executable, str(Path(__file__).with_name("constants.py"))]:
        return None
    changes = words[2 : words.index("--")]
    names = [change.partition("=")[0].partition(":")[2] for change in changes]
    return words[2:] if all("." in name for name in names) else None


def _same_interpreter(env: Mapping[str, str] | None) -> bool:
    def read(variables: Mapping[str, str]) -> dict[str, str]:
        return {n: text for n, text in variables.items() if n.startswith(READ_AT_START)}

    return read(os.environ if env is None else env) == read(_started_server().environment)


class _Server:
    """The interpreter that is forked, seen from the process of a test."""

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._mutex = threading.Lock()
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_MAX_BYTES)
        with other:
            paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno()), *paths],
                pass_fds=[other.fileno()],
                # numpy starts a thread for each core, and a fork has only one thread.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()

    def fork(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        """Start a child of this process with three standard files, and return its number."""
        with self._mutex:
            # A child whose parent ends becomes one of the next ancestor that has this attribute.
            prctl = ctypes.CDLL(None).prctl
            prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], list(files))
                return int(self._socket.recv(32))
            finally:
                prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@cache
def _started_server() -> _Server:
    return _Server()


def _serve(connection: socket.socket) -> list[str] | None:
    """Fork for each request. Return the words of a request in its child, and None at the end."""
    ancillary = socket.CMSG_SPACE(_STANDARD_FILES * array.array("i").itemsize)
    while True:
        text, control, _, _ = connection.recvmsg(_REQUEST_MAX_BYTES, ancillary)
        if not text:
            return None
        files = array.array("i")
        for _, _, content in control:
            files.frombytes(content)
        reading, writing = os.pipe()
        if not (between := os.fork()):
            middle = os.getpid()
            if child := os.fork():
                os.write(writing, str(child).encode())
                os._exit(0)
            for number, file in enumerate(files):
                os.dup2(file, number)
            connection.close()
            for file in (*files, reading, writing):
                os.close(file)
            while os.getppid() == middle:
                time.sleep(0.0005)
            return _enter(json.loads(text))
        os.close(writing)
        os.waitpid(between, 0)
        connection.send(os.read(reading, 32))
        for file in (*files, reading):
            os.close(file)


def _enter(request: Mapping[str, Any]) -> list[str]:
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["folder"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # new buffers, as at a start
        stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    sys.stderr.reconfigure(errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    words: list[str] = request["words"]
    return words


def main() -> None:
    """Serve forks; in a child, run its command, so that it ends as an interpreter does."""
    sys.path[:0] = sys.argv[2:]
    for name in PRELOADED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    words = _serve(socket.socket(fileno=int(sys.argv[1])))
    if words is not None:
        sys.argv[:] = ["sluice", *words]
        from support.constants import main as run_command  # noqa: PLC0415 - preloaded

        run_command()


if __name__ == "__main__":
    main()
