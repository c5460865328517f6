"""Write the pictures into `docs/pictures`: `python -m deploy.pictures`."""

from deploy.pictures.catalogue import DRAWINGS, FOLDER, render


def main() -> None:
    """Write every picture."""
    for drawing in DRAWINGS:
        (FOLDER / f"{drawing.name}.svg").write_text(render(drawing), encoding="utf-8")


if __name__ == "__main__":
    main()
