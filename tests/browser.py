"""A real headless Chromium for the HTML report; Debian's packages chromium and chromium-driver give it."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.support.wait import WebDriverWait

SCREENSHOTS = Path(__file__).resolve().parents[1] / "build" / "browser"
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1280,900",
)  # fmt: skip


def require_chromium() -> tuple[str, str]:
    """Where Chromium and its driver are; without them tests are skipped, but in CI they fail."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if found[0] is None or found[1] is None:
        reason = "needs Debian's packages chromium and chromium-driver (just install-browser)"
        if os.environ.get("CI"):
            pytest.fail(f"CI runs the browser tests: {reason}")
        pytest.skip(reason)
    return found[0], found[1]


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with an empty profile of its own; its console is kept."""
    binary, driver = require_chromium()
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.set_script_timeout(30)
        yield browser
    finally:
        browser.quit()


class Page:
    """A report open in the browser."""

    def __init__(self, browser: webdriver.Chrome, file: Path) -> None:
        self.browser, self.file = browser, file

    def open(self, *, width: int = 1280, height: int = 900, dark: bool = False, fragment: str = "") -> None:
        """Open the file anew in a window of this size and wait for its charts."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        wishes = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce",
        }  # a click waits for no scroll
        features = {"features": [{"name": name, "value": value} for name, value in wishes.items()]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        self.browser.get("about:blank")
        self.browser.get(self.file.as_uri() + fragment)
        self.settle()

    def run(self, script: str, *arguments: object) -> object:
        return self.browser.execute_script(script, *arguments)

    def settle(self) -> None:
        """Wait until every chart that is wanted is drawn."""
        script = """
            const done = arguments[0];
            const wait = () => {
              const charts = [...document.querySelectorAll(".chart")].filter((chart) => chart.offsetParent !== null);
              charts.every((chart) => chart.querySelector("svg")) ? requestAnimationFrame(() => done()) : setTimeout(wait, 20);
            };
            setTimeout(wait, 50);
        """
        self.browser.execute_async_script(script)

    def rows(self) -> list[str]:
        """The layers of the table, in its order."""
        return list(self.run("return [...document.querySelectorAll('#body tr')].map((row) => row.dataset.row)"))  # type: ignore[call-overload]

    def opens(self, name: str | None = None) -> bool:
        """Whether the sheet opens (of this layer), soon: the address changes first, and the page follows it."""
        script = "const title = document.getElementById('sheet-title').textContent; return document.getElementById('sheet').open && title"
        return self._soon(lambda: bool(found := self.run(script)) and name in (None, found))

    def closes(self) -> bool:
        """Whether the sheet closes, soon."""
        return self._soon(lambda: not self.run("return document.getElementById('sheet').open"))

    def _soon(self, condition: Callable[[], bool]) -> bool:
        try:
            return bool(WebDriverWait(self.browser, 10, 0.02).until(lambda _: condition()))
        except TimeoutException:
            return False

    def overflow(self) -> int:
        """By how many pixels the page, or the open sheet, is wider than the window."""
        script = """
            const sheet = document.getElementById("sheet");
            return sheet.open ? sheet.scrollWidth - sheet.clientWidth : document.documentElement.scrollWidth - innerWidth;
        """
        return int(self.run(script))  # type: ignore[call-overload]

    def console(self) -> list[str]:
        """Everything that the console said since the last call."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.browser.save_screenshot(str(SCREENSHOTS / f"{name}.png"))
