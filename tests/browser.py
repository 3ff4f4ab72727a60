"""A real Chromium for tests: Debian's, driven by Playwright's package. Where either is missing, tests skip and say why.

Each visit refuses requests that leave the machine, and remembers them with whatever the page wrote to its console.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WIDTHS = {"phone": 375, "tablet": 820, "desktop": 1440}  # pixels
# As root, Chromium cannot make its own sandbox; what tests show it is ours.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SERIOUS = {"serious", "critical"}


@dataclass
class Visit:
    """A page and what it did: errors on its console, and requests to other machines."""

    page: Page
    errors: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)

    def violations(self) -> list[str]:
        """Return the serious violations of axe's rules for accessibility, each with the first element that it found."""
        import axe_playwright_python

        self.page.wait_for_function("document.getAnimations().every(each => each.playState !== 'running')")
        self.page.add_script_tag(path=Path(axe_playwright_python.__file__).with_name("axe.min.js"))
        found = self.page.evaluate("async () => (await axe.run()).violations")
        return [
            f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:200]}"
            for each in found
            if each["impact"] in SERIOUS
        ]

    def is_wider_than_its_window(self) -> bool:
        """Return whether the page must be scrolled sideways."""
        return bool(
            self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth + 1")
        )


def skip_without_browser() -> None:
    """Skip where there is no Chromium or no Playwright."""
    missing = [name for name in ("playwright", "axe_playwright_python") if find_spec(name) is None]
    if CHROMIUM is None:
        missing.append("chromium (Debian: apt install chromium)")
    if missing:
        pytest.skip(f"no browser here: {' and '.join(missing)} is not installed")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a Chromium until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser: Browser, address: str, *, width: int = WIDTHS["desktop"], dark: bool = False) -> Iterator[Visit]:
    """Open an address in a window of its own, with nothing kept from other visits."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    visited = Visit(context.new_page())
    home = urlsplit(address)

    def pass_or_refuse(route: object) -> None:
        asked = urlsplit(route.request.url)
        if asked.scheme in {"data", "blob"} or (asked.scheme, asked.netloc) == (home.scheme, home.netloc):
            route.continue_()
        else:
            visited.strangers.append(route.request.url)
            route.abort()

    context.route("**/*", pass_or_refuse)
    visited.page.on("console", lambda said: visited.errors.append(said.text) if said.type == "error" else None)
    visited.page.on("pageerror", lambda error: visited.errors.append(str(error)))
    try:
        visited.page.goto(address, wait_until="load")
        yield visited
    finally:
        context.close()
