"""What mkdocs does with our pages beyond mkdocs.yml: anchors as GitHub makes them, and files of the repository.

The pages are written for readers of the repository too. A link that leads out of docs/, such as ../examples/sweep.py,
becomes a page of the site that shows the file. For readers that are programs, each page is there as Markdown, too,
beside its HTML, and llms.txt lists them all: it is the first page, which has a line about each.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from jinja2 import Environment
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(((?:\.\./)+[^)\s#]+)")
NEEDS = re.compile(r"^<!-- needs: .* -->\n", re.MULTILINE)  # for the test of the snippets
LANGUAGES = {".py": "python", ".md": "markdown", ".ipynb": "json", ".toml": "toml"}
SHOWN = "repository"  # the folder of the site with files of the repository
FOR_DEVELOPERS = ("design/", f"{SHOWN}/")  # which the search lists below the pages for users


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name anchors as GitHub does, so that a link works in both places."""
    config.mdx_configs["toc"]["slugify"] = anchor
    return config


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading).lower().strip().replace(" ", separator)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ that a page links."""
    for page in list(files.documentation_pages()):
        for link in LINK.findall(page.content_string):
            path = outside(page.src_uri, link)
            if path is not None and files.get_file_from_path(shown_at(path)) is None:
                files.append(File.generated(config, shown_at(path), content=shown(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - mkdocs passes them by name
    """Lead links out of docs/ to the pages that on_files added, and drop what only the tests read."""
    if page.file.src_uri.startswith(FOR_DEVELOPERS):
        page.meta["search"] = {"boost": 0.1}

    def link_to(found: re.Match[str]) -> str:
        path = outside(page.file.src_uri, found[1])
        if path is None:
            return found[0]
        return f"]({posixpath.relpath(shown_at(path), posixpath.dirname(page.file.src_uri) or '.')}"

    return NEEDS.sub("", LINK.sub(link_to, markdown))


def on_env(env: Environment, *, config: MkDocsConfig, files: Files) -> Environment:
    """Write the pages as Markdown, and the list of them."""
    pages = {file.src_uri: file.page.markdown for file in files.documentation_pages() if file.page is not None}
    heading, _, rest = str(pages["index.md"]).partition("\n")
    pages["llms.txt"] = f"{heading}\n\n> {config.site_description}\n{rest}"
    for name, text in pages.items():
        path = Path(config.site_dir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(text))
    return env


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:  # noqa: ARG001 - as above
    """Name the dialog of the search, for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def outside(page: str, link: str) -> str | None:
    """Return the path in the repository to which a link of a page leads, or None if that is a page below docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith(("docs/", "..")) or not (ROOT / path).is_file() else path


def shown_at(path: str) -> str:
    """Return where the site shows a file of the repository."""
    return f"{SHOWN}/{path}.md"


def shown(path: str) -> str:
    """Return the page for a file of the repository."""
    text = (ROOT / path).read_text()
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n"
