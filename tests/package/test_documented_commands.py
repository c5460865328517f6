"""Every command block of the README and of `docs/send` runs, in order, in an empty folder."""

import re
import signal
from pathlib import Path

import pytest
from support.documented_blocks import ROOT, blocks_of, check_command, commands_of, page_run
from support.documented_clients import RUNNERS, NotRun, readme_deployment
from support.local_deployment import wait_gone

pytestmark = [pytest.mark.package, pytest.mark.timeout(900)]

SEARCHABLE_S = 15
STOPPED_S = 10
SENDING = sorted(one.stem for one in (ROOT / "docs" / "send").glob("*.md"))
PAGES = sorted(
    str(one.relative_to(ROOT))
    for one in (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/send/*.md"))
)


def test_the_blocks_of_the_readme_run_in_order(wheel: Path, tmp_path: Path) -> None:
    """Install the wheel into an empty environment, run everything, and search the first line."""
    picture, install, commands, output = blocks_of("README.md")
    assert "your clients" in picture.text
    work = tmp_path / "empty"
    work.mkdir()
    with readme_deployment(work, tmp_path, wheel, install.text) as deployment:
        text = commands.text.replace("127.0.0.1:8080", deployment.state["addresses"]["gateway"])
        send, search, batches, status = text.splitlines()
        sent = deployment.shell(send)
        seconds = deployment.wait_found("hello", SEARCHABLE_S)
        print(f"the first line was found after {seconds:.1f} s")
        shown = [sent, *deployment.shell(f"{search} 2>&1; {batches}").splitlines()]
        for documented, line in zip(output.text.splitlines(), shown, strict=True):
            assert shape_of(documented) == shape_of(line)
        assert "nothing needs attention" in deployment.shell(status)
        everything = deployment.processes()
        deployment.process.send_signal(signal.SIGINT)
        assert deployment.process.wait(STOPPED_S) == 0
        assert wait_gone(everything, 2) == []


def shape_of(line: str) -> str:
    """Return the line without what differs between two runs: numbers, names, and ingestion."""
    line = re.sub(r"door:local:\w\w(/\w{32})?", "door", line.strip()).partition(", by ")[0]
    return re.sub(r"\d[\d:.TZ-]*", "0", line.partition(" segments")[0])


def test_each_page_has_a_runner_for_each_block() -> None:
    assert set(SENDING) == set(RUNNERS)
    for name in SENDING:
        found = [one.place for one in blocks_of(f"docs/send/{name}.md")]
        assert len(found) == len(RUNNERS[name]), found


@pytest.mark.parametrize("name", SENDING)
def test_the_blocks_of_a_page_run_in_order(name: str, tmp_path: Path) -> None:
    reasons = []
    with page_run(tmp_path) as run:
        for runner, block in zip(RUNNERS[name], blocks_of(f"docs/send/{name}.md"), strict=True):
            if isinstance(runner, NotRun):
                reasons.append(f"{block.place}: {runner.reason}")
            else:
                runner(run, block)
    print("\n".join(reasons))


@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_has_these_options(page: str) -> None:
    """Also commands in the text: an option or a subcommand that was renamed is found."""
    for words in commands_of(page):
        check_command(words)
