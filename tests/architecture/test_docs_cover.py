"""The manual knows every public name, every variable and every error code, and names none that does not exist."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic
from kinetic import _hardware as hardware
from kinetic._config.variables import VARIABLES
from kinetic._jobs import status

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "kinetic"
MANUAL = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*MANUAL, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "design").rglob("*.md"))]
PARTS_OF_NAMES = {"KINETIC_"}  # as in "KINETIC_*"


def text_of(*pages: Path) -> str:
    return "\n".join(page.read_text() for page in pages)


@functools.cache  # for both tests: parsing takes seconds on a busy machine, so only what may have a code is parsed
def codes() -> set[str]:
    texts = filter(re.compile(r'code=|default_code|"cause"|_failed\(|_give_up\(').search, sources())
    found = {code for text in texts for code in codes_in(ast.parse(text))}
    ends = set(ends_in(ast.parse((SOURCE / "_backends" / "kube" / "object_status.py").read_text())))
    return found | {status._CODES.get(code, code) for code in ends}


def sources() -> list[str]:
    return [file.read_text() for file in SOURCE.rglob("*.py")]


def ends_in(tree: ast.AST) -> Iterator[str]:
    """Yield the codes of how pods end: a job that leaves no verdict is told with them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Explanation":
            yield from constants(node.args[0])


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Yield the codes in one file: defaults of classes, `code="…"`, and the causes that a failed job is told with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if getattr(target, "id", "") == "default_code":
                yield from constants(node.value)
        elif isinstance(node, ast.ClassDef):
            yield from (code for keyword in node.keywords if keyword.arg == "code" for code in constants(keyword.value))
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from constants(keyword.value)
            told = getattr(node.func, "id", "") == "_failed" and len(node.args) > 1
            if told or getattr(node.func, "attr", "") == "_give_up":  # _runner/pod/pod_source.py
                yield from constants(node.args[0])
        elif isinstance(node, ast.Dict):
            pairs = {key.value: value for key, value in zip(node.keys, node.values, strict=True) if is_text(key)}
            if "cause" in pairs and getattr(pairs.get("status"), "attr", "") == "FAILED":
                yield from constants(pairs["cause"])


def constants(node: ast.expr | None) -> Iterator[str]:
    if is_text(node):
        yield node.value
    elif isinstance(node, ast.IfExp | ast.BoolOp):
        for part in ast.iter_child_nodes(node):
            yield from constants(part)


def is_text(node: object) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_every_public_name_is_in_the_manual():
    manual = text_of(*MANUAL)

    missing = [name for name in kinetic.__all__ if f"kinetic.{name}" not in manual]

    assert missing == []


def test_every_variable_is_in_the_table_of_settings():
    table = text_of(ROOT / "docs" / "settings.md")

    missing = [name for name in VARIABLES if f"| `{name}` |" not in table]

    assert missing == []


def test_the_pages_name_no_variable_that_does_not_exist():
    known = VARIABLES.keys() | PARTS_OF_NAMES

    strangers = {page.name: set(re.findall(r"KINETIC_(?!TEST_)[A-Z_]*", page.read_text())) - known for page in PAGES}

    assert {page: names for page, names in strangers.items() if names} == {}


@pytest.mark.timeout(90)
def test_every_error_code_is_on_the_page_of_errors():
    page = text_of(ROOT / "docs" / "errors.md")

    found = codes()

    assert len(found) > 40  # otherwise this test has lost its way in the sources
    assert [code for code in sorted(found) if f"`{code}`" not in page] == []


@pytest.mark.timeout(90)
def test_the_page_of_errors_has_no_code_that_is_never_raised():
    rows = [line for line in text_of(ROOT / "docs" / "errors.md").splitlines() if line.startswith("| `")]

    told = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row.split("|")[1])}

    assert told - codes() == set()


@pytest.mark.timeout(90)
def test_a_code_that_is_reserved_is_raised_nowhere():
    (sentence,) = re.findall(r"^(.*) are reserved", text_of(ROOT / "docs" / "errors.md"), re.MULTILINE)
    reserved = set(re.findall(r"`([a-z-]+)`", sentence))
    kinds = {name for name, kind in vars(kinetic.errors).items() if getattr(kind, "default_code", "") in reserved}
    trees = [ast.parse(text) for text in sources() if any(f"{kind}(" in text for kind in kinds)]

    raised = {
        getattr(node.func, "id", "")
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and not any(keyword.arg == "code" for keyword in node.keywords)
    }

    assert reserved
    assert kinds & raised == set()


def test_ids_in_the_manual_begin_as_those_that_jobs_and_warm_pods_get():
    written = re.findall(r"\b(?:tpu|gpu)-[\w-]+-(?:warm\b|\d{8}-\d{6})[\w-]*", text_of(*MANUAL))

    assert (hardware.slug("tpu-v5e-1"), hardware.slug("gpu-l4")) == ("v5e1", "l4")
    assert written == []


def test_every_link_leads_somewhere():
    broken = [f"{page.name}: {link}" for page in PAGES for link in links_of(page) if not leads_somewhere(page, link)]

    assert broken == []


def test_the_index_links_every_page_of_the_manual():
    index = links_of(ROOT / "docs" / "index.md")

    assert [page.name for page in MANUAL[1:] if page.name not in {"index.md", *index}] == []


def test_the_site_shows_every_page_of_the_manual():
    listed = re.findall(r"^ +- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)

    assert sorted({page.name for page in MANUAL[1:]} - {"index.md", *listed}) == [], "name them in nav of mkdocs.yml"
    assert [name for name in listed if not (ROOT / "docs" / name).is_file()] == []
    in_index = re.findall(r"^\* \[[^\]]+\]\(([\w-]+\.md)\)", text_of(ROOT / "docs" / "index.md"), re.MULTILINE)
    assert [name for name in listed if "/" not in name] == in_index  # readers find a page in one order


def test_the_badges_of_the_readme_say_what_the_project_says(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = importlib.util.spec_from_file_location("generate_badges", ROOT / "docs" / "generate_badges.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    drawn = generator.badges()

    assert {name: (generator.PICTURES / name).read_text() for name in drawn} == drawn, "python docs/generate_badges.py"
    readme = (ROOT / "README.md").read_text()
    assert [name for name in drawn if f"(docs/pictures/{name})" not in readme] == []


def test_the_first_screen_of_the_readme_has_code_a_picture_and_two_commands():
    first = (ROOT / "README.md").read_text().partition("## ")[0]
    code, console = re.findall(r"^```\w+\n(.*?)^```$", first, re.MULTILINE | re.DOTALL)

    statements = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(statements) <= 10
    assert "(docs/pictures/session.svg)" in first
    assert len(re.findall(r"^\$ ", console, re.MULTILINE)) == 2
    assert "http" not in first  # nothing that needs a network to be shown


def test_records_of_decisions_are_counted_through_and_bear_their_numbers():
    records = sorted((ROOT / "docs" / "design" / "decisions").glob("*.md"))

    assert [record.name[:5] for record in records] == [f"{number:04}-" for number in range(1, len(records) + 1)]
    titles = [record.read_text().partition(". ")[0] for record in records]
    assert titles == [f"# {number}" for number in range(1, len(records) + 1)]


def links_of(page: Path) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in link]


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not anchor or not target.is_file():
        return target.exists()
    headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_no_page_has_lines_of_a_merge_that_was_not_finished() -> None:
    marked = re.compile(r"^(<{7} .*|={7}|>{7} .*)$", re.MULTILINE)

    assert [(page.name, line) for page in PAGES for line in marked.findall(page.read_text())] == []
