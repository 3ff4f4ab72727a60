"""Build the documentation site, one folder for each version: python docs/build_site.py [FOLDER].

`make docs` runs it. The site is in FOLDER/VERSION, FOLDER being build/site unless you name one. Folders of other
versions stay, and each version offers the others. Nothing is loaded from another machine, neither now nor by a reader.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><title>kinetic</title><meta http-equiv="refresh" content="0; url={version}/index.html">
</head>
<body><p><a href="{version}/index.html">kinetic {version}</a></p></body>
</html>
"""


def main(folder: Path) -> int:
    """Build the version of this clone, list all versions, and say where the site is."""
    version = this_version()
    target = folder / version
    shutil.rmtree(target, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    if done.returncode != 0:
        return done.returncode
    versions = sorted((found.parent.name for found in folder.glob("*/index.html")), key=in_order, reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in versions]
    listed[0]["aliases"] = ["latest"]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1))
    (folder / "index.html").write_text(FIRST.format(version=versions[0]))
    pages = sum(1 for _ in target.rglob("*.html"))
    print(f"kinetic: {pages} pages; open {(folder / 'index.html').resolve().as_uri()}")  # noqa: T201 - a script says what it did
    return 0


def this_version() -> str:
    """Return the version of the sources, without importing them."""
    text = (ROOT / "src" / "kinetic" / "_version.py").read_text()
    found = re.search(r'__version__[^"]*"([^"]+)"', text)
    if found is None:
        raise SystemExit("no version in src/kinetic/_version.py")
    return found[1]


def in_order(version: str) -> list[int]:
    """Return what sorts versions: 0.10 comes after 0.9."""
    return [int(number) for number in re.findall(r"\d+", version)]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"))
