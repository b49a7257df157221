"""A headless Chromium, and a dashboard for it to look at."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dashboard_scene import Flights
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from millrace.dashboard import Dashboard

TOKEN = "a-token-of-enough-letters"
MINUTE = 60_000_000
WINDOW = 5 * MINUTE


class Run:
    """What a run answers, and what it was asked."""

    def __init__(self) -> None:
        self.going = True
        self.asked: list[tuple[str, int, str]] = []

    def __call__(
        self, mailbox: Any, what: str, generation: int, *, about: str = "", timeout_s: float
    ) -> Any:
        if what != "status":
            self.asked.append((what, generation, about))
        return type("Answer", (), {"done": True, "text": "stopped", "epoch": 41})()


class Browser:
    """A page in Chromium."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, dark: bool = False, size: tuple[int, int] = (1440, 900)) -> None:
        self.driver.set_window_size(*size)
        self.scheme(dark=dark)
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(url)

    def scheme(self, *, dark: bool) -> None:
        """Prefer the dark, or the light, as a system does that changes while pages are open."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        media = {"features": [scheme, still]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    @contextmanager
    def first_running(self, script: str) -> Iterator[None]:
        """Run a script in each page that is opened, before its own."""
        made = self.driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument", {"source": f"{{{script}}}"}
        )
        yield
        self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", made)

    def memory(self) -> dict[str, int]:
        """Return what the page has once its garbage is collected: nodes, listeners and bytes."""
        self.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        counted = self.driver.execute_cdp_cmd("Memory.getDOMCounters", {})
        used = self.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]
        listeners = counted["jsEventListeners"]
        return {"nodes": counted["nodes"], "listeners": listeners, "bytes": int(used)}

    def until(self, text: str, id: str) -> str:
        """Return what an element says, when a text is in it."""
        self.wait(lambda: text in self.text(id))
        return self.text(id)

    def wait(self, reached: Callable[[], Any]) -> None:
        WebDriverWait(
            self.driver, 60, 0.05, ignored_exceptions=(StaleElementReferenceException,)
        ).until(lambda _: reached())

    def text(self, id: str) -> str:
        return str(self.driver.find_element(By.ID, id).text)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> Any:
        (found,) = self.all(selector)
        return found

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def complaints(self) -> list[str]:
        """Return what the browser said of the page: errors, and what its policy has refused."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return one Chromium for all tests."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--no-first-run",
        "--hide-scrollbars",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService("/usr/bin/chromedriver")
    )
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Flights:
    """Return a run with a key that holds, late records, a dead letter and a call that hangs."""
    # Shortly before a window ends, so that much has been made of it; but in pictures it is now.
    now = None if "PICTURES" in os.environ else time.time_ns() // 10**3 // WINDOW * WINDOW - MINUTE
    made = Flights(tmp_path_factory.mktemp("flights") / "flights-2026", epochs=36, now=now)
    made.go_on(26)
    made.fail()
    made.go_on(6, held=True)
    made.go_on(4, late=True)
    return made


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def dashboard(flights: Flights, run: Run) -> Iterator[Dashboard]:
    """Return a dashboard that may act, of a run in which a call hangs by now."""
    flights.hang()
    with Dashboard(
        flights.state, "/srv/runs/flights-2026", run, token=TOKEN, alive=lambda _: run.going
    ) as served:
        yield served
