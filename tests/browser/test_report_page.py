"""The page in a real browser: nothing fails, nothing is fetched, everything can be read and used."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import needs
import pytest
from report_runs import RECIPE, report, sample, write_run

from probmargin.reporting.page import render
from probmargin.reporting.page.data import Gallery
from probmargin.reporting.page.render import SECTIONS

pytestmark = [pytest.mark.slow, needs.package("playwright", "dev"), needs.program("chromium")]

HARMFUL = "<script>alert(1)</script>"
ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
WIDTHS = (390, 1440)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One run, two runs, one that has only begun, and runs whose every name is a script."""
    folder = tmp_path_factory.mktemp("pages")
    runs = folder / "runs"
    names = {"one": ["a"], "two": ["a", "b"], "harmful": ["c", "d"], "begun": ["e"]}
    names |= {"apart": ["a", "long-name"], "early": ["long-name"]}
    for name in "ab":
        write_run(runs / name)
    for name in "cd":
        write_run(runs / name, id=f"{HARMFUL}{name}", data=HARMFUL, model=HARMFUL, hardware=HARMFUL)
    write_run(runs / "e", epochs=0, parts="")
    write_run(runs / "long-name", recipe={**RECIPE, "lr_milestones": [2]})
    found = {}
    for name, members in names.items():
        changes: dict[str, Any] = {}
        if name == "harmful":
            gallery = Gallery(samples=(sample(HARMFUL, HARMFUL),), attack=HARMFUL, scale=HARMFUL)
            changes = {"classes": (HARMFUL, "</script><img src=x onerror=alert(2)>"), "gallery": gallery}
        found[name] = folder / f"{name}.html"
        reports = [report(runs / member, **changes) for member in members]
        if name == "harmful":
            reports = [replace(one, label=f"{HARMFUL}{one.label}") for one in reports]
        text = render(reports)
        found[name].write_text(text, encoding="utf-8")
    return found


class Watched:
    """A page with everything that must not happen on it."""

    def __init__(self, context: Any, path: Path) -> None:
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        context.route("**/*", self._route)
        self.address = path.as_uri()
        self.page.goto(self.address)

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _route(self, route: Any) -> None:
        if route.request.url.partition("#")[0] == self.address:
            route.continue_()
        elif not route.request.url.startswith("data:"):
            self.requests.append(route.request.url)
            route.abort()


@pytest.fixture
def open_page(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    contexts = []

    def opened(name: str, width: int = 1440, scheme: str = "light", touch: bool = False) -> Any:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=touch)
        contexts.append(context)
        watched = Watched(context, pages[name])
        watches.append(watched)
        return watched.page

    watches: list[Watched] = []
    yield opened
    for watched in watches:
        assert watched.problems == []
        assert watched.requests == []
    for context in contexts:
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["one", "two", "harmful", "begun"])
def test_every_section_shows_and_nothing_is_cut_off(open_page: Any, name: str, width: int) -> None:
    page = open_page(name, width)
    wanted = [section for section, _ in SECTIONS if section != "comparison" or name in ("two", "harmful")]
    for section in wanted:
        place = page.locator(f"section#{section}")
        place.scroll_into_view_if_needed()
        assert place.is_visible()
        assert place.locator("h2").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    drawn = page.locator("figure.chart .plot svg").count()
    assert drawn == page.locator("figure.chart").count()
    assert drawn == {"one": 10, "two": 13, "harmful": 13, "begun": 0}[name]


def test_a_run_named_like_a_script_does_no_harm(open_page: Any) -> None:
    page = open_page("harmful")
    assert HARMFUL in page.locator("h1").inner_text()
    assert page.locator(f"section#summary h3 >> text={HARMFUL}c").is_visible()
    page.locator("figure[data-figure=loss] .plot").hover()
    assert HARMFUL in page.locator("figure[data-figure=loss] .tip").inner_text()
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.scripts.length") == 2


def test_pointing_at_a_curve_reads_it(open_page: Any, pages: dict[str, Path]) -> None:
    page = open_page("one")
    figure = page.locator("figure[data-figure=loss]")
    plot = figure.locator(".plot")
    assert figure.locator(".tip").is_hidden()
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 60)
    assert figure.locator(".tip").inner_text().split() == ["epoch", "6", "loss", "0.3333"]
    assert "Loss, epoch 6: loss 0.3333" in figure.locator(".said").inner_text()
    page.mouse.move(0, 0)
    assert figure.locator(".tip").is_hidden()
    stored = json.loads(page.locator("#figures").inner_text())
    assert stored["loss"]["series"][0]["y"][-1] == 0.33333


def test_marks_are_named_beside_their_lines_or_by_number(open_page: Any) -> None:
    def marks(page: Any) -> tuple[list[str], str]:
        chart = page.locator("[data-figure=loss]")
        names = chart.locator("svg .name").all_text_contents()
        return names, chart.locator(".legend li").last.text_content()

    assert marks(open_page("early")) == (["rate drops", "weights begin"], "")
    assert marks(open_page("early", width=390))[0] == ["1", "2"]
    names, legend = marks(open_page("apart"))
    assert names == ["1", "2", "3"]
    assert legend == "1: rate drops (long-name); 2: weights begin, rate drops (a); 3: rate drops (a)"


def test_a_finger_reads_a_curve(open_page: Any) -> None:
    page = open_page("one", 390, touch=True)
    figure = page.locator("figure[data-figure=loss]")
    plot = figure.locator(".plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] - 14, box["y"] + 60)
    assert figure.locator(".tip").is_visible()
    assert figure.locator(".tip").inner_text().split()[:2] == ["epoch", "6"]


def axis(figure: Any) -> list[str]:
    texts: list[str] = figure.locator(".plot svg text").all_text_contents()
    return [text for text in texts if text.isdigit()]


def test_dragging_zooms_and_a_double_click_or_the_button_shows_all(open_page: Any) -> None:
    page = open_page("one")
    figure = page.locator("figure[data-figure=loss]")
    plot, button = figure.locator(".plot"), figure.locator("button.reset")
    plot.scroll_into_view_if_needed()
    whole = axis(figure)
    box = plot.bounding_box()

    def drag() -> None:
        page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 80, steps=4)
        page.mouse.up()

    assert button.is_hidden()
    drag()
    assert axis(figure) != whole
    assert button.is_visible()
    page.mouse.dblclick(box["x"] + 100, box["y"] + 60)
    assert axis(figure) == whole
    assert button.is_hidden()
    drag()
    button.click()
    assert axis(figure) == whole


def test_a_chart_works_with_the_keyboard_alone(open_page: Any) -> None:
    page = open_page("one")
    figure = page.locator("figure[data-figure=accuracy]")
    figure.locator(".plot").focus()
    page.keyboard.press("Home")
    assert "epoch 1" in figure.locator(".tip").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "epoch 3" in figure.locator(".said").inner_text()
    page.keyboard.press("+")
    assert figure.locator("button.reset").is_visible()
    page.keyboard.press("0")
    assert figure.locator("button.reset").is_hidden()
    page.keyboard.press("End")
    assert "epoch 6" in figure.locator(".tip").inner_text()


def test_the_histogram_follows_its_slider(open_page: Any) -> None:
    page = open_page("one")
    figure = page.locator("figure.histogram[data-figure=weight-0]")
    slider = figure.locator("input[type=range]")
    heights = "bars => bars.map(bar => Number(bar.getAttribute('height')))"
    last = figure.locator("rect").evaluate_all(heights)
    slider.focus()
    page.keyboard.press("Home")
    assert figure.locator("output").inner_text() == "1"
    first = figure.locator("rect").evaluate_all(heights)
    assert first != last
    assert sum(height > 0 for height in first) == 1, "before weights begin all are 1"


def is_painted(page: Any, colour: str, timeout: float = 30_000) -> bool:
    """Wait for the page's ground to have a colour: a change of the system's comes with the next frame."""
    ground = "wanted => getComputedStyle(document.body).backgroundColor === wanted"
    page.wait_for_function(ground, arg=colour, timeout=timeout)
    return True


def is_remembered(page: Any, colour: str) -> bool:
    """Load the page anew; more than once where it must be: a browser under load may write its storage later."""
    from playwright.sync_api import TimeoutError as TooLate

    for _ in range(5):
        page.reload()
        try:
            return is_painted(page, colour, timeout=3_000)
        except TooLate:
            continue
    return False


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen_and_is_remembered(open_page: Any, scheme: str) -> None:
    page = open_page("one", scheme=scheme)
    light, dark = "rgb(250, 249, 247)", "rgb(20, 22, 26)"
    own, other = (light, dark) if scheme == "light" else (dark, light)
    assert is_painted(page, own)
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    assert is_painted(page, other)
    page.emulate_media(color_scheme=scheme)
    page.get_by_text("Dark" if scheme == "light" else "Light", exact=True).click()
    assert is_painted(page, other)
    assert is_remembered(page, other)
    page.get_by_text("Auto", exact=True).click()
    assert is_remembered(page, own)


def test_the_keyboard_reaches_the_switch_and_the_sections(open_page: Any) -> None:
    page = open_page("one")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "theme"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.value") == "dark"
    assert is_painted(page, "rgb(20, 22, 26)")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.hash") == "#summary"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "focus can be seen"


CONTRAST = """() => {
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const bright = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const painter = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const pixel = (colour) => {
    painter.fillStyle = colour;
    painter.fillRect(0, 0, 1, 1);
    return [...painter.getImageData(0, 0, 1, 1).data];
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return pixel(colour);
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("main *, header *, nav *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || node.closest(".hidden, .said, svg, noscript") || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const [high, low] = [bright(pixel(style.color)), bright(behind(node))].sort((x, y) => y - x);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) poor.push([node.className, ratio, node.textContent]);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["two", "begun"])
def test_all_text_has_enough_contrast(open_page: Any, name: str, scheme: str) -> None:
    assert open_page(name, scheme=scheme).evaluate(CONTRAST) == []


def test_everything_is_printed_on_white(open_page: Any, tmp_path: Path) -> None:
    page = open_page("two", scheme="dark")
    page.emulate_media(media="print")
    assert is_painted(page, "rgb(255, 255, 255)")
    assert page.locator("nav").is_hidden()
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every((folded) => folded.open)")
    page.pdf(path=str(tmp_path / "page.pdf"), format="A4")
    assert (tmp_path / "page.pdf").read_bytes()[:4] == b"%PDF"


def test_the_page_reads_without_scripts(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["one"].as_uri())
    assert "54.00%" in page.locator("section#results").inner_text()
    assert page.locator("noscript p").is_visible()
    context.close()


def test_the_pages_are_small(pages: dict[str, Path]) -> None:
    assert max(path.stat().st_size for path in pages.values()) < 3_000_000
