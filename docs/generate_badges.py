"""Draw the badges of the README from pyproject.toml: python docs/generate_badges.py.

They are files of this repository, so they are true without a network. A test compares them with what this draws.
"""

from __future__ import annotations

import html
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
_CHARACTER = 6.8  # pixels of an average character of 11 px in the fonts below


def badges() -> dict[str, str]:
    """Return each badge: the name of its file, and the picture."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classifiers = [each.split(" :: ") for each in project["classifiers"]]
    versions = [each[-1] for each in classifiers if each[:2] == ["Programming Language", "Python"] and "." in each[-1]]
    systems = ["Linux" if each[-1] == "Linux" else "macOS" for each in classifiers if each[0] == "Operating System"]
    typed = ["Typing", "Typed"] in classifiers and (ROOT / "src" / "kinetic" / "py.typed").exists()
    texts = {
        "python": ("python", f"{versions[0]} to {versions[-1]}"),
        "platforms": ("runs on", " and ".join(sorted(systems))),
        "types": ("types", "mypy --strict" if typed else "none"),
        "license": ("license", project["license"]),
    }
    return {f"badge-{name}.svg": draw(*both) for name, both in texts.items()}


def draw(label: str, value: str) -> str:
    """Return one badge."""
    left, right = (round(len(text) * _CHARACTER + 12) for text in (label, value))
    width = left + right
    fonts = "Verdana, 'DejaVu Sans', sans-serif"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img">
<title>{html.escape(label)}: {html.escape(value)}</title>
<rect width="{width}" height="20" rx="3" fill="#24292f"/>
<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{right - 3}z" fill="#1158a7"/>
<g fill="#fff" text-anchor="middle" font-family="{fonts}" font-size="11">
<text x="{left / 2}" y="14">{html.escape(label)}</text>
<text x="{left + right / 2}" y="14">{html.escape(value)}</text>
</g>
</svg>
"""


if __name__ == "__main__":
    for name, picture in badges().items():
        (PICTURES / name).write_text(picture)
