"""The documentation site in a browser: on a desk and on a phone, light and dark."""

import shutil
import subprocess
import sys
from pathlib import Path

import needs
import pytest
from page_blocks import ROOT

pytestmark = [pytest.mark.slow, needs.package("playwright", "dev"), needs.program("chromium")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "docs" / "build.py"), "--out", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def test_every_page_fits_its_screen_and_follows_the_readers_colours(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    faults: list[object] = []

    def note(error: object) -> None:
        faults.append(error)

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        grounds = set()
        for width, scheme in ((1440, "light"), (390, "dark")):
            page = chromium.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
            page.on("pageerror", note)
            for path in sorted(site.glob("*.html")):
                page.goto(path.as_uri())
                wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wider <= 0, f"{path.name} is {wider} pixels too wide for {width}"
                missing = page.evaluate(
                    "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
                )
                assert missing == [], f"{path.name} misses pictures"
            menu = page.evaluate("document.getElementById('pages').open")
            assert menu is (width == 1440), "the navigation is open on a desk and folded on a phone"
            grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert faults == []
        chromium.close()
    assert len(grounds) == 2, "light and dark look the same"
