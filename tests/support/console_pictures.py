"""The pictures of the documentation: written by the tests, and compared with the pages."""

import base64
import os
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures"
PICTURED: Final = frozenset({"overview", "conflict", "explore", "batch"})
WRITTEN: Final = "SLUICE_TEST_PICTURES" in os.environ
DIFFERENT_MAX: Final = 0.05
"""Share of the pixels that may differ: times, ages and lines of the last hour are never equal."""
_SETTLE: Final = """() => {
  const late = {
    ".attention li": /enqueued .* late|is .* behind/,
    ".notice div": /has not reported/,
  };
  for (const [place, words] of Object.entries(late)) {
    for (const one of document.querySelectorAll(place)) one.hidden ||= words.test(one.textContent);
  }
  for (const one of document.querySelectorAll(".stage.late")) one.classList.remove("late");
}"""
"""Hides what appears when a deployment without uploads is older than a minute."""
_COMPARE: Final = """async (pictures) => {
  const [one, other] = await Promise.all(pictures.map(async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    return canvas.getImageData(0, 0, image.width, image.height);
  }));
  if (one.width !== other.width || one.height !== other.height) return 1;
  let different = 0;
  for (let at = 0; at < one.data.length; at += 4) {
    const most = Math.max(...[0, 1, 2].map((n) => Math.abs(one.data[at + n] - other.data[at + n])));
    if (most > 8) different += 1;
  }
  return different * 4 / one.data.length;
}"""


def check_picture(browser: Browser, page: Page, name: str) -> list[str]:
    """Compare a page with its picture, or write the picture if that was requested."""
    path = PICTURES / f"console-{name}.png"
    page.evaluate(_SETTLE)
    shown = page.screenshot()
    if WRITTEN:
        path.write_bytes(shown)
        return []
    share = differing_share(browser, path.read_bytes(), shown)
    print(f"{path.name}: {share:.2%} of the pixels differ")
    if share <= DIFFERENT_MAX:
        return []
    return [
        f"{path.name} differs in {share:.0%} of its pixels: write it with SLUICE_TEST_PICTURES=1"
    ]


def differing_share(browser: Browser, one: bytes, other: bytes) -> float:
    """Return the share of the pixels in which two pictures differ visibly."""
    page = browser.new_page()
    try:
        encoded = [base64.b64encode(picture).decode() for picture in (one, other)]
        return float(page.evaluate(_COMPARE, encoded))
    finally:
        page.close()
