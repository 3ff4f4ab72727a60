"""`make docs`: the site is built without a warning, asks no other machine, and works in a real browser."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import browser as browsers
import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "build_site.py"
# One page of each kind: the first page, prose with tables, and a long page of references.
TEMPLATES = ["index.html", "jobs.html", "api.html"]
FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*rel=["']?stylesheet[^>]*https?://"""
)

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs-material is not installed here"),
    pytest.mark.timeout(600),
]


def build(folder: Path) -> str:
    """Build the site as `make docs` does, and return what was printed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder)], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the folder of a site that was built beside one of an older version."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "0.0.9").mkdir()
    (folder / "0.0.9" / "index.html").write_text("an older version")
    printed = build(folder)
    assert printed.splitlines()[-1].endswith(f"open {(folder / 'index.html').as_uri()}")
    return folder


@pytest.fixture(scope="module")
def site(folder: Path) -> Path:
    return next(each.parent for each in folder.glob("*/jobs.html"))


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Serve the folder on this machine, and yield its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    browsers.skip_without_browser()
    with browsers.chromium() as browser:
        yield browser


def test_versions_are_folders_and_the_newest_comes_first(folder: Path, site: Path):
    listed = json.loads((folder / "versions.json").read_text())

    assert [each["version"] for each in listed] == [site.name, "0.0.9"]
    assert listed[0]["aliases"] == ["latest"]
    assert f"url={site.name}/index.html" in (folder / "index.html").read_text()


def test_no_page_loads_anything_from_another_machine(site: Path):
    pages = list(site.rglob("*.html"))

    assert len(pages) > 60
    assert [page.name for page in pages if FROM_ELSEWHERE.search(page.read_text())] == []
    styles = [style for style in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", style.read_text())]
    assert styles == []


def test_a_program_finds_every_page_as_markdown_by_one_list(site: Path):
    text = (site / "llms.txt").read_text()
    listed = re.findall(r"^\* \[.+?\]\(([^)#]+)\)", text, re.MULTILINE)

    assert re.match(r"# kinetic.*\n\n> Run a Python function", text)
    assert {page.with_suffix(".md").name for page in site.glob("*.html")} - {"404.md", "index.md"} <= set(listed)
    for name in listed:
        page = (site / name).read_text()
        assert page.startswith("# ")
        for link in re.findall(r"\]\(([^):#]+\.md)", page):
            assert (site / name).parent.joinpath(link).is_file(), f"{name}: {link}"


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path):
    page = ROOT / "mkdocs.yml"
    text = page.read_text().replace("docs_dir: docs", f"docs_dir: {tmp_path / 'docs'}")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[away](gone.md)\n")
    settings = tmp_path / "mkdocs.yml"
    settings.write_text(
        text.partition("\nnav:\n")[0].replace("docs/site_hooks.py", str(ROOT / "docs" / "site_hooks.py"))
    )

    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(settings), "--site-dir", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "gone.md" in done.stderr


def test_every_page_opens_without_errors_and_asks_no_other_machine(browser, address: str, site: Path):
    pages = [page.relative_to(site) for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    index = json.loads((site / "search" / "search_index.json").read_text())
    short = {**index, "docs": index["docs"][:1]}  # a second for each page that reads it whole
    empty = []
    with browsers.visit(browser, f"{address}/{site.name}/index.html") as visit:
        visit.page.route("**/search/search_index.json", lambda route: route.fulfill(json=short))
        for page in pages:
            visit.page.goto(f"{address}/{site.name}/{page}", wait_until="domcontentloaded")
            if not visit.page.locator("article h1").count():
                empty.append(page)

    assert len(pages) > 60
    assert (empty, visit.errors, visit.strangers) == ([], [], [])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("width", browsers.WIDTHS.values(), ids=list(browsers.WIDTHS))
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_page_fits_its_window_and_is_accessible(browser, address: str, site: Path, name: str, width: int):
    for dark in (False, True):
        if dark and name == "api.html" and width != browsers.WIDTHS["phone"]:
            continue  # axe takes ten seconds for its length; its colors are those of the other pages
        with browsers.visit(browser, f"{address}/{site.name}/{name}", width=width, dark=dark) as visit:
            assert not visit.is_wider_than_its_window()
            assert visit.violations() == []
            assert visit.errors == []


def test_a_variable_in_a_table_on_a_phone_breaks_between_its_words(browser, address: str, site: Path):
    settings = f"{address}/{site.name}/settings.html"
    with browsers.visit(browser, settings, width=browsers.WIDTHS["phone"]) as visit:
        words = visit.page.evaluate("""() => [...document.querySelectorAll("td:first-child code")].flatMap(code =>
            [...code.childNodes].filter(node => node.data).map(node => {
              const range = document.createRange()
              range.selectNodeContents(node)
              return [node.data, range.getClientRects().length]
            }))""")

    assert ["KINETIC_", 1] in words
    assert [word for word, lines in words if lines > 1 and len(word) < 10] == []


def test_the_dark_theme_follows_the_system(browser, address: str, site: Path):
    shown = {}
    for dark in (False, True):
        with browsers.visit(browser, f"{address}/{site.name}/index.html", dark=dark) as visit:
            shown[dark] = visit.page.locator("body").get_attribute("data-md-color-scheme")

    assert shown == {False: "default", True: "slate"}


@pytest.mark.parametrize("opened", ["served", "from a folder"])
def test_the_search_finds_a_page(browser, address: str, site: Path, opened: str):
    first = f"{address}/{site.name}/index.html" if opened == "served" else (site / "index.html").as_uri()
    with browsers.visit(browser, first) as visit:
        visit.page.keyboard.press("/")  # the key that the theme gives to the search
        visit.page.keyboard.type("preempted")
        result = visit.page.locator(".md-search-result__item a[href*='spot.html']").first
        result.wait_for(timeout=20_000)
        result.click()
        visit.page.wait_for_url("**/spot.html*")

        assert visit.page.locator("article h1").inner_text().startswith("Spot")
        assert visit.strangers == []


@pytest.mark.parametrize(("word", "page"), [("oom", "errors"), ("proxy", "clusters")])
def test_the_search_reads_words_in_brackets_and_lists_the_pages_for_developers_last(
    browser, address: str, site: Path, word: str, page: str
):
    with browsers.visit(browser, f"{address}/{site.name}/index.html") as visit:
        visit.page.keyboard.press("/")
        visit.page.keyboard.type(word)
        visit.page.locator(f".md-search-result__item a[href*='{page}.html']").first.wait_for(timeout=20_000)
        links = visit.page.locator(".md-search-result__item > a").evaluate_all("all => all.map(each => each.href)")

    are_for_developers = ["/design/" in link for link in links]
    assert are_for_developers == sorted(are_for_developers)


def test_the_button_of_a_console_copies_what_is_typed(browser, address: str, site: Path):
    typed = []
    with browsers.visit(browser, f"{address}/{site.name}/jobs.html") as visit:
        visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for text in ("kinetic jobs list  ", "python flaky.py"):
            block = visit.page.locator(".highlight", has_text=text).first
            block.locator("button").evaluate("button => button.click()")
            visit.page.locator(".md-dialog--active").wait_for(timeout=20_000)
            typed += visit.page.evaluate("navigator.clipboard.readText()").split("\n")

    assert [line.split("  ")[0] for line in typed] == [
        "kinetic jobs list",
        "kinetic jobs status cpu-train-20261120-134402-1f0c9ab",
        "kinetic jobs logs cpu-train-20261120-134402-1f0c9ab --follow",
        "python flaky.py",
    ]


def test_a_reader_changes_the_version(browser, address: str, site: Path):
    with browsers.visit(browser, f"{address}/{site.name}/jobs.html") as visit:
        versions = visit.page.locator(".md-version__link")
        versions.first.wait_for(state="attached", timeout=20_000)

        assert versions.all_text_contents() == [site.name, "0.0.9"]
