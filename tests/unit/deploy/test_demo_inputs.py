"""What the demonstration expects of each line of its input."""

from pathlib import Path

from deploy.demo.inputs import copy_inputs


def test_ends_of_lines_and_a_byte_order_mark_are_no_part_of_a_line(tmp_path: Path) -> None:
    """The agent leaves them out, so the comparison must too."""
    source = tmp_path / "windows.log"
    source.write_bytes(b"\xef\xbb\xbffirst\r\nsec\rond\r\n\nlast\r")
    (copied,) = copy_inputs([source], tmp_path / "copies")
    assert copied.lines() == [b"first", b"sec\rond", b"", b"last"]
