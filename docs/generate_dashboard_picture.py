"""Draw docs/pictures/dashboard.png: a job that runs, as the dashboard shows it in a real Chromium.

python docs/generate_dashboard_picture.py

It takes half a minute: the job trains for that long, so its graphs have something to show. Needs what `make test`
installs, and Debian's Chromium.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import browser  # noqa: E402 - the path must be set before

PICTURE = ROOT / "docs" / "pictures" / "dashboard.png"
MOST_BYTES = 200_000
WIDTH, HEIGHT = 1120, 900  # pixels
SECONDS = 28  # that the job has run when the picture is taken
TRAIN = """
import time

import kinetic


@kinetic.run(accelerator="cpu")
def train(rate, epochs=400):
    seen, weight = [], 5.0
    for epoch in range(epochs):
        until = time.monotonic() + 0.35
        while time.monotonic() < until:  # gradients of a parabola
            weight -= rate * 2 * (weight - 3.0) / 1e6
        if epoch % 5 == 0:
            seen.append(b"x" * (20 << 20))
        print(f"epoch {epoch:3}  weight {weight:.4f}  loss {(weight - 3.0) ** 2:.5f}", flush=True)
        time.sleep(0.15 if epoch % 20 < 14 else 0.6)
    return weight


if __name__ == "__main__":
    print(train.run_async(0.02).job_id)
"""


def main() -> None:
    """Run a job and a dashboard, and take the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        theirs = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_"))}
        environment = theirs | {"KINETIC_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT / "src")}
        python = [sys.executable, "-m", "kinetic"]
        words = [*python, "dashboard", "--no-open", "--json-url", "--port", "0"]
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        job_id = done.stdout.strip()
        try:
            with subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as served:
                _take(served, job_id)
                served.terminate()
        finally:
            subprocess.run([*python, "jobs", "cancel", job_id], cwd=folder, env=environment, check=True)
    if PICTURE.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{PICTURE} has {PICTURE.stat().st_size} bytes, and may have {MOST_BYTES}")


def _take(served: subprocess.Popen[str], job_id: str) -> None:
    text = ""
    while not text.endswith("}\n"):
        text += served.stdout.readline() if served.stdout is not None else ""
    with browser.chromium() as running:
        context = running.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page = context.new_page()
        page.goto(f"{json.loads(text)['url']}#/jobs/{job_id}")
        page.get_by_role("img", name="CPU over").wait_for()
        page.wait_for_timeout(SECONDS * 1000)
        page.mouse.move(0, 0)
        page.screenshot(path=PICTURE)
        context.close()


if __name__ == "__main__":
    main()
