"""Pages in a browser: what headless Chromium draws of one, and what clicks, the wheel and the pointer change."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeplan as pp
from experiments.view.drawn_plan import drawn_plans
from experiments.view.page import PATH_COLOR, html_page

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

    def pixels(self, color: str) -> int:
        """How many pixels of the window have a colour."""
        import matplotlib.image

        wanted = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        picture = matplotlib.image.imread(io.BytesIO(self.driver.get_screenshot_as_png()))[..., :3]
        return int(np.count_nonzero((np.abs(picture - wanted) < 0.01).all(axis=2)))


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A page of two schedules in headless Chromium, at rest."""
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver_path is None:
        pytest.skip("Chromium and its driver are not installed: pages are tested by their numbers")
    from selenium import webdriver

    replays = {
        name: pp.simulate(name, stages=4, microbatches=8, forward=1, backward=1, weight=1, transfer=0.2, stash=1)
        for name in ("1f1b", "zb-h1")
    }
    file = tmp_path / "page.html"
    file.write_text(html_page(drawn_plans(replays), replays), encoding="utf-8")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    driver.set_page_load_timeout(60)
    try:
        driver.get(file.as_uri())
        shown = Page(driver)
        shown.until(
            "Bokeh.documents.length && Bokeh.documents[0].is_idle && model('shown ops 1').data_source.get_length()"
        )
        yield shown
        assert not [line for line in driver.get_log("browser") if line["level"] in ("WARNING", "SEVERE")]
    finally:
        driver.quit()


def test_clicks_the_wheel_and_the_pointer(page: Page) -> None:
    """Every op is a box; the path is drawn when it is asked for; both timelines zoom as one; a box under the pointer is told."""
    from selenium.webdriver import ActionChains, Keys
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
    from selenium.webdriver.support.ui import WebDriverWait

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
    x, y = page.ask(
        "(({el, frame}, {left, right, top, bottom}, box, {x, y}) => "
        "[x + frame.x_scale.compute((left[box] + right[box]) / 2), y + frame.y_scale.compute((top[box] + bottom[box]) / 2)])"
        f"(Bokeh.index.find_one(model('timeline 0')), model('shown ops 0').data_source.data, {box}, "
        "Bokeh.index.find_one(model('timeline 0')).el.getBoundingClientRect())"
    )
    pointer = ActionChains(page.driver)
    pointer.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    pointer.perform()
    told = WebDriverWait(page.driver, 60, 0.1).until(lambda _: [one.text for one in page.inside(".bk-Tooltip")])
    assert told[0].startswith("0B2: backward\nstage 0 · device 0\n")
    assert "\nwaits for: 1B2 (stage 1 · device 1), there at " in told[0]
