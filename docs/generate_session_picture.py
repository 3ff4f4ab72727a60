"""Draw docs/pictures/session.svg: the first commands of the README, run for real, as a terminal shows them.

python docs/generate_session_picture.py

Needs what `make test` installs: pyte renders the terminal. A test runs the same commands and compares what they print,
ids and times aside.
"""

from __future__ import annotations

import html
import os
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from servers import terminal  # noqa: E402 - the path must be set before

PICTURE = ROOT / "docs" / "pictures" / "session.svg"
COMMANDS = [
    "python train.py",
    "python submit.py",
    "kinetic jobs list",
    "kinetic jobs logs @last",
    "kinetic jobs result @last",
]
COLUMNS = 108
_SCRIPT = re.compile(r"^```python\n# (train|submit)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SIZE, _LINE, _CHARACTER, _MARGIN = 14, 20, 8.43, 16  # pixels; 8.43 is the width of a character of 14 px in these fonts
_FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
_COLORS = {"prompt": "#7ee787", "text": "#e6edf3", "dim": "#8b949e"}


def session() -> list[tuple[str, str]]:
    """Run the commands in an empty folder and home, and return each with what the terminal shows of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for script, text in _SCRIPT.findall((ROOT / "README.md").read_text()):
            (folder / f"{script}.py").write_text(text)
        tools = Path(sys.executable).parent
        theirs = ("KINETIC_", "PYTEST", "GOOGLE_", "COLUMNS", "LINES")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
        # The notice about containers is about this machine, not the reader's. It is shown once a day: use it up first.
        environment |= {"KINETIC_HOME": str(folder / "home"), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
        environment |= {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
        _run("python train.py", folder, environment)
        return [(command, _run(command, folder, environment)) for command in COMMANDS]


def _run(command: str, folder: Path, environment: dict[str, str]) -> str:
    seen = terminal.run(["sh", "-c", command], cwd=folder, env=environment, columns=COLUMNS)
    if seen.code != 0:
        raise SystemExit(f"$ {command} ended with {seen.code}:\n{seen.screen}")
    if command == "python submit.py":  # the next command shows the job as it ended
        terminal.run(["sh", "-c", "kinetic jobs wait @last"], cwd=folder, env=environment)
    return seen.screen


def draw(commands: list[tuple[str, str]]) -> str:
    """Return the picture of a session: for each command its prompt and its output."""
    rows: list[str] = []
    for command, shown in commands:
        rows.append(
            f'<tspan fill="{_COLORS["prompt"]}">$</tspan> <tspan font-weight="bold">{html.escape(command)}</tspan>'
        )
        for line in shown.splitlines():
            color = _COLORS["dim"] if line.startswith("kinetic:") else _COLORS["text"]
            rows.append(f'<tspan fill="{color}">{html.escape(line)}</tspan>')
        rows.append("")
    del rows[-1]
    width, height = round(COLUMNS * _CHARACTER + 2 * _MARGIN), len(rows) * _LINE + 2 * _MARGIN + 24
    texts = "\n".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + 24 + _LINE * number + _SIZE}">{row}</text>'
        for number, row in enumerate(rows)
        if row
    )
    buttons = "".join(
        f'<circle cx="{_MARGIN + 6 + 20 * number}" cy="{_MARGIN + 2}" r="6" fill="{color}"/>'
        for number, color in enumerate(["#ff5f57", "#febc2e", "#28c840"])
    )
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    style = f'font-family="{_FONTS}" font-size="{_SIZE}" fill="{_COLORS["text"]}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>A terminal session with kinetic</title>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
{buttons}
<g {style} xml:space="preserve">
{texts}
</g>
</svg>
"""


def lines_of(picture: str) -> list[str]:
    """Return the lines of text that a picture shows."""
    return [html.unescape(re.sub(r"<[^>]+>", "", text)) for text in re.findall(r"<text [^>]*>(.*)</text>", picture)]


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(session()))
    print(f"wrote {PICTURE.relative_to(ROOT)}")  # noqa: T201 - a script says what it did
