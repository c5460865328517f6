"""The command blocks of pages, and an empty folder in which a test runs them."""

import functools
import inspect
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from cyclopts import App
from support.commands import sluice
from support.local_deployment import clean_environment, is_ready
from support.store_versitygw import free_port

from sluice_cli.shell.application import build_application

ROOT = Path(__file__).parents[2]
READY_S = 60.0
ARRIVED_S = 60.0
_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# A quotation may go over several lines. A description behind a command follows at least two spaces.
_COMMAND = re.compile(r"""^sluice(?: ?(?:"[^"]*"|'[^']*'|[^"'\s]))+""", re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}\S[^\n]*\n)+(?=\n|\Z)")
_TOKEN = re.compile(r"slt_[\w-]{43}")
_OWN_PATH = re.compile(r"(?<![\w.:/~-])/(?=(?:etc|opt|run|var)/)")
"""The start of an absolute path of a page, which is moved into the folder of the test."""


@dataclass(frozen=True)
class Block:
    """One command block.

    Attributes:
        page: The path of its page, relative to the checkout.
        line: The number of its first line.
        language: What follows the fence.
        text: Its text.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Where it is, for the reader of a failure."""
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """Return the fenced and the indented blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [(one.start(), one["language"], one["text"]) for one in _FENCE.finditer(text)]
    prose = _FENCE.sub(lambda one: re.sub(r"[^\n]", "x", one[0]), text)
    found += [
        (one.start(), "", re.sub(r"^ {4}", "", one[0], flags=re.MULTILINE))
        for one in _INDENTED.finditer(prose)
    ]
    return [
        Block(page, text.count("\n", 0, start) + 1, language, body)
        for start, language, body in sorted(found)
    ]


def commands_of(page: str) -> list[list[str]]:
    """Return the words of each command line of sluice in a page: in its blocks and in its text."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [_words(one) for one in re.findall(r"`(sluice [^`\n]+)`", text)]
    for block in blocks_of(page):
        joined = re.sub(r"\s*\\\n\s*", " ", block.text)
        found += [_words(one) for one in _COMMAND.findall(joined)]
    return found


def _words(line: str) -> list[str]:
    """Return the words behind `sluice`, to the first operator of the shell."""
    words = (one.strip("[]") for one in shlex.split(line, comments=True)[1:] if one != "…")
    return list(itertools.takewhile(lambda one: one not in {"|", ">", ">>", "<", "&&"}, words))


def check_command(words: list[str]) -> None:
    """Check that a command accepts these options and as many arguments."""
    here, rest = _application(), words
    while rest and not rest[0].startswith("-") and rest[0] in here:
        here, rest = here[rest[0]], rest[1:]
    if rest == ["--help"] or words == ["--version"]:
        return
    assert here is not _application(), f"no such command: {words}"
    known = here.assemble_argument_collection(parse_docstring=False) if here.default_command else ()
    names = {name for one in known for name in (*one.names, *one.negatives)}
    given = list(itertools.takewhile(lambda one: not one.startswith("-"), rest))
    places = [one.field_info.kind for one in known if one.index is not None]
    several = inspect.Parameter.VAR_POSITIONAL in places
    assert several or len(given) <= len(places), f"too many arguments: {words}"
    for option in (one.partition("=")[0] for one in rest if one.startswith("-")):
        assert option in names, f"no such option: {option} of {words}"


@functools.cache
def _application() -> App:
    return build_application()


@dataclass
class PageRun:
    """An empty folder with a store, in which the blocks of one page run in order.

    Attributes:
        folder: The folder.
        programs: Folder of the programs that come first in `PATH`.
        address: Where the gateway of the page listens.
        replaced: Texts of the page and what they are here, such as an address.
        token: The last token that a command printed.
        started: Processes that still run.
        more: Further variables of every command.
    """

    folder: Path
    programs: Path
    address: str
    replaced: dict[str, str] = field(default_factory=dict)
    token: str = ""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)

    def text(self, block: Block) -> str:
        """Return the text of a block with the addresses, paths and secrets of this run."""
        text = block.text
        for written, real in self.replaced.items():
            text = text.replace(written, real)
        return _OWN_PATH.sub(f"{self.folder}/", text.replace("slt_…", self.token))

    def environment(self) -> dict[str, str]:
        path = f"{self.programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return clean_environment(
            PATH=path,
            SLUICE_GATEWAY_LISTEN=self.address,
            SLUICE_TOKEN=self.token,
            **self.more,
        )

    def shell(self, commands: str) -> str:
        """Run commands to their end and return their output."""
        done = subprocess.run(
            ["bash", "-e", "-c", commands],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, commands: str) -> Path:
        """Start commands that do not end; return the file of their output."""
        log = self.folder / f"output-{len(self.started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-e", "-c", commands],
                cwd=self.folder,
                env=self.environment(),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.started.append(process)
        return log

    def wait_ready(self, log: Path) -> None:
        """Wait until the gateway is ready, and remember the token that the log contains."""
        end_s = time.monotonic() + READY_S
        # Its own log too: a gateway of another run may have taken the same free port.
        while "gateway_listening" not in log.read_text() or not is_ready(self.address):
            assert self.started[-1].poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.1)
        found = _TOKEN.search(log.read_text())
        self.token = found[0] if found is not None else ""

    def wait_found(self, text: str, *words: str, feed: Path | None = None, line: str = "") -> None:
        """Search until a result contains a text; append a line to a client's file meanwhile."""
        end_s = time.monotonic() + ARRIVED_S
        while True:
            if feed is not None:
                with feed.open("a", encoding="utf-8") as file:
                    file.write(f"{line or text}\n")
            done = sluice("query", *(words or ("-q", text)), folder=self.folder)
            assert done.returncode == 0, done.stderr
            if text in done.stdout:
                return
            logs = sorted(self.folder.glob("*.log"))
            shown = "".join(f"{one.name}: {one.read_text()[-2000:]}\n" for one in logs)
            assert all(one.poll() is None for one in self.started), f"a program ended\n{shown}"
            assert time.monotonic() < end_s, f"`{text}` did not arrive\n{shown}"
            time.sleep(0.5)

    def served(self, path: str) -> bool:
        """Return True if the gateway has a door at this path."""
        request = urllib.request.Request(f"http://{self.address}{path}", data=b"{}")
        request.add_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return bool(response.status)
        except urllib.error.HTTPError as error:
            return error.code not in (404, 405)

    def stop(self) -> None:
        """Stop everything that still runs."""
        for one in self.started:
            below = psutil.Process(one.pid).children(recursive=True) if one.poll() is None else []
            for process in below:
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGTERM)
            _, left = psutil.wait_procs(below, timeout=15)
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            one.kill()
            one.wait()


@contextmanager
def page_run(folder: Path) -> Iterator[PageRun]:
    """Make an empty folder with a store, and stop what was started in it at the end."""
    programs, work = folder / "bin", folder / "empty"
    programs.mkdir()
    work.mkdir()
    assert sluice("init", folder=work).returncode == 0
    address = f"127.0.0.1:{free_port()}"
    replaced = {
        "--store URL": f"--store file://{work}/.sluice",
        "http://127.0.0.1:8080": f"http://{address}",
    }
    one = PageRun(work, programs, address, replaced)
    try:
        yield one
    finally:
        one.stop()
