"""Pages in a browser: what headless Chromium draws of one, and what clicks, the wheel and the pointer change."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeplan as pp
from experiments.sweep.sweep_page import sweep_html
from experiments.sweep.swept import Swept
from experiments.view.drawn_plan import drawn_plans
from experiments.view.page import PATH_COLOR, html_page
from simulator.results.figures import series_look
from tests.experiments.test_sweep_page import points

pytest.importorskip("bokeh", reason="Bokeh is not installed")
pytest.importorskip("selenium", reason="Selenium is not installed")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,1600",
]

INSIDE = """
const found = []
const walk = (root) => root.querySelectorAll("*").forEach((one) => {
  if (one.matches(arguments[0])) found.push(one)
  if (one.shadowRoot) walk(one.shadowRoot)
})
walk(document)
return found
"""
"""Elements that a selector matches, in shadow trees, too, where Bokeh keeps its own."""


class Page:
    """A page that a browser shows."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def ask(self, expression: str) -> Any:
        """The value of an expression; `model(name)` is Bokeh's."""
        return self.driver.execute_script(
            f"const model = (name) => Bokeh.documents[0].get_model_by_name(name); return {expression}"
        )

    def until(self, expression: str) -> Any:
        """The value of an expression, once it is true."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 60, 0.1).until(lambda _: self.ask(expression), expression)

    def inside(self, selector: str) -> list[Any]:
        """Elements of the page and its shadow trees."""
        found: list[Any] = self.driver.execute_script(INSIDE, selector)
        return found

    def place(self, plot: str, x: float, y: float) -> tuple[int, int]:
        """The pixel of the window at which a plot has these values."""
        view = f"Bokeh.index.find_one(model('{plot}'))"
        found = self.ask(
            "(({frame}, corner, x, y) => [corner.x + frame.x_scale.compute(x), corner.y + frame.y_scale.compute(y)])"
            f"({view}, {view}.el.getBoundingClientRect(), {x}, {y})"
        )
        return round(found[0]), round(found[1])

    def pointer(self, plot: str, x: float, y: float) -> Any:
        """What the pointer does, which begins as it goes to the place of these values in a plot."""
        from selenium.webdriver import ActionChains

        pointer = ActionChains(self.driver)
        pointer.w3c_actions.pointer_action.move_to_location(*self.place(plot, x, y))
        return pointer

    def told(self, plot: str, x: float, y: float) -> str:
        """What is told of what is under the pointer there."""
        from selenium.webdriver.support.ui import WebDriverWait

        self.pointer(plot, x, y).perform()
        found: list[str] = WebDriverWait(self.driver, 60, 0.1).until(
            lambda _: [one.text for one in self.inside(".bk-Tooltip") if one.text]
        )
        return found[0]

    def pixels(self, color: str) -> int:
        """How many pixels of the window have a colour."""
        import matplotlib.image

        wanted = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        picture = matplotlib.image.imread(io.BytesIO(self.driver.get_screenshot_as_png()))[..., :3]
        return int(np.count_nonzero((np.abs(picture - wanted) < 0.01).all(axis=2)))


Opener = Callable[[str, str], Page]
"""Opens a page by its text, and waits until an expression is true of it."""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """What opens pages in headless Chromium, which must have nothing to warn of."""
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        pytest.skip("Chromium and its driver are not installed: pages are tested by their numbers")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    driver.set_page_load_timeout(60)

    def opening(text: str, until: str) -> Page:
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        driver.get(file.as_uri())
        shown = Page(driver)
        shown.until(f"Bokeh.documents.length && Bokeh.documents[0].is_idle && !!({until})")
        return shown

    try:
        yield opening
        assert not [line for line in driver.get_log("browser") if line["level"] in ("WARNING", "SEVERE")]
    finally:
        driver.quit()


def test_clicks_the_wheel_and_the_pointer(opened: Opener) -> None:
    """Every op is a box; the path is drawn when it is asked for; both timelines zoom as one; a box under the pointer is told."""
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    replays = {
        name: pp.simulate(name, stages=4, microbatches=8, forward=1, backward=1, weight=1, transfer=0.2, stash=1)
        for name in ("1f1b", "zb-h1")
    }
    page = opened(html_page(drawn_plans(replays), replays), "model('shown ops 1').data_source.get_length()")
    boxes = "model('shown ops %d').data_source.data.box"
    assert [page.ask(f"{boxes % plan}.length") for plan in (0, 1)] == [64, 96]
    before = page.pixels(PATH_COLOR)
    critical, causes = page.inside("input[type=checkbox]")
    critical.click()
    page.until("model('critical path 0').visible && model('critical path 1').visible && Bokeh.documents[0].is_idle")
    assert page.pixels(PATH_COLOR) > before + 500
    critical.click()
    assert page.ask("model('shown idle 0').visible") is False
    causes.click()
    page.until("model('shown idle 0').visible")

    canvas = page.inside("canvas")[0]
    wheel = ActionChains(page.driver).key_down(Keys.CONTROL)
    wheel.scroll_from_origin(ScrollOrigin.from_element(canvas), 0, -240).key_up(Keys.CONTROL).perform()
    page.until("model('timeline 0').x_range.end - model('timeline 0').x_range.start < 24")
    assert page.ask("model('timeline 0').x_range === model('memory of 1').x_range")

    box = page.ask(f"{boxes % 0}.findIndex((box) => box === 8)")
    place = "({left, right, top, bottom}, box) => [(left[box] + right[box]) / 2, (top[box] + bottom[box]) / 2]"
    x, y = page.ask(f"({place})(model('shown ops 0').data_source.data, {box})")
    told = page.told("timeline 0", x, y)
    assert told.startswith("0B2: backward\nstage 0 · device 0\n")
    assert "\nwaits for: 1B2 (stage 1 · device 1), there at " in told


def test_a_sweep_is_one_selection(opened: Opener) -> None:
    """A mark tells its plan; a click on it chooses its row in all figures; a legend hides a line with its rings; a heading sorts
    numbers as numbers; the panel of the heat map is chosen.
    """
    swept = Swept.of(points("gpipe", "1f1b"))
    page = opened(sweep_html(swept), "model('cells')")
    blue = page.pixels(series_look(0)["color"])
    assert blue > 500
    told = page.told("lines", 64, 4.0)
    assert "schedule=gpipe, devices=1, batch=64" in told
    assert "\nplan: pp1\n" in told
    assert "\ndecided otherwise: stages: 1 -> 2" in told
    page.pointer("lines", 64, 4.0).click().perform()
    page.until("model('rows').selected.indices.length === 1")
    assert page.ask("model('rows').selected.indices") == [2]
    assert [one.text.split("\n")[:3] for one in page.inside(".slick-row:has(.selected)")] == [["gpipe", "1", "64"]]

    sorted_by = next(one for one in page.inside(".slick-header-column") if one.text.startswith("iteration"))
    sorted_by.click()
    seconds = [one.text for one in page.inside(".slick-row .slick-cell.l3")]
    assert seconds == ["0.225", "0.25", "0.45", "0.5", "0.9", "1", "1.8", "2", "2", "3.6", "4", ""]

    panels = page.inside("select")[0]
    next(one for one in panels.find_elements("tag name", "option") if one.text == "schedule=1f1b").click()
    page.until("model('cells').view.filter.indices.includes(11)")
    next(one for one in page.inside(".bk-item") if one.text == "schedule=gpipe, devices=1").click()
    page.until("!model('line 0').visible && !model('rings 0').visible && !model('points 0').visible")
    assert page.pixels(series_look(0)["color"]) < blue
