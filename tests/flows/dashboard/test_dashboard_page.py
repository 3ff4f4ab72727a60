"""The page of the dashboard in a real Chromium: what people see and do, on each width and in each color."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flows.dashboard.conftest import measured

JOBS = """
    import os, sys, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def train(lr, seed=0):
        print("seed", seed)
        if seed == 2:
            raise ValueError("loss is not finite")
        return {"loss": 1 / lr, "note": "fine"}

    @kinetic.run(accelerator="cpu")
    def slow(path):
        for number in range(300):
            print("step", number, flush=True)
        while not os.path.exists(path):
            time.sleep(0.02)
        print("last words", flush=True)
"""
JOBS += """
    @kinetic.run(accelerator="cpu")
    def again(path):
        print("this is attempt", kinetic.current().attempt, flush=True)
        while not os.path.exists(path):
            time.sleep(0.02)
        if kinetic.current().attempt == 0:
            raise ValueError("once more")

    @kinetic.run(accelerator="cpu")
    def long(more, end, lines=20_000, length=0):
        for number in range(lines):
            print("step", number, "." * length)
        print("many words", flush=True)
        while not os.path.exists(more):
            time.sleep(0.02)
        print("more words", flush=True)
        while not os.path.exists(end):
            time.sleep(0.02)

    @kinetic.run(accelerator="cpu")
    def counts(more, go):
        for done, path in ((25, more), (75, go)):
            kinetic.progress(done, 100, **{"<b>loss</b>": 0.5})
            while not os.path.exists(path):
                time.sleep(0.02)
"""
SWEEP = (
    'b = kinetic.collections.map(train, [{"lr": 0.1 * (n + 1), "seed": n} for n in range(5)], name="sweep"); b.wait()'
)
KERAS = Path(__file__).parents[2] / "unit" / "_output" / "keras_fit.log"  # what the real one printed
EVIL = '<script>document.title="owned"</script><img src=x onerror=document.title="owned">'
BIDI = "ab\u202egnp.exe"


@pytest.fixture
def page(browser) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a dashboard in a browser of its own; what goes wrong in the page fails the test."""
    opened, wrong = [], []

    def open_(
        served, path: str = "", *, width: int = 1280, height: int = 800, scheme: str = "light", **more: Any
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **more)
        opened.append(context)
        found = context.new_page()
        found.set_default_timeout(20_000)
        found.on("pageerror", lambda error: wrong.append(str(error)))
        found.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        found.goto(served.url + path)
        return found

    open_.wrong = wrong  # a test that brings errors about takes them out
    yield open_
    for context in opened:
        context.close()
    # Other tests make network interfaces, and Chromium then breaks off requests to any address.
    assert [text for text in wrong if "ERR_NETWORK_CHANGED" not in text] == []


@pytest.fixture
def submit(project) -> Callable[[str], str]:
    """Return a function that runs a script with the jobs above, and returns what it printed."""

    def run(code: str) -> str:
        project.write("theirs.py", JOBS)
        project.write("submit.py", f"from theirs import *\n{code}")
        done = project.run("submit.py")
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


# ------------------------------------------------------------------------------------------------------------ showing


def test_the_token_leaves_the_address_and_the_page_opens_again_without_it(stored, dashboard, page):
    stored.add(function="fit")
    shown = page(dashboard())

    shown.get_by_role("link", name="fit").wait_for()
    assert "token" not in shown.url
    shown.reload()
    shown.get_by_role("link", name="fit").wait_for()


def test_jobs_are_filtered_by_status_and_by_text(stored, dashboard, page):
    stored.add(function="fit")
    stored.add("failed", function="evaluate", error={"type": "ValueError", "message": "no such thing"})
    shown = page(dashboard())
    rows = shown.locator(".rows .row")

    shown.get_by_role("button", name="Failed").click()
    assert rows.all_text_contents()[0].startswith("Failedevaluate")
    assert rows.count() == 1
    shown.get_by_role("button", name="Failed").click()
    shown.get_by_role("searchbox").fill("fit")
    assert rows.count() == 1
    shown.get_by_role("searchbox").fill("nothing like it")
    assert shown.get_by_text("No job matches these filters.").is_visible()


def test_a_job_appears_runs_is_followed_and_ends_without_a_reload(dashboard, page, submit, tmp_path):
    go = tmp_path / "go"
    shown = page(dashboard())
    shown.get_by_text("There are no jobs yet.").wait_for()

    submit(f"slow.run_async({str(go)!r})")
    shown.locator(".status.running").wait_for()
    shown.get_by_role("link", name="slow").click()
    shown.get_by_text("step 299").wait_for()
    assert shown.evaluate(AT_THE_END)
    go.touch()

    shown.get_by_text("last words").wait_for()
    shown.locator(".headline .status.succeeded").wait_for()
    assert shown.evaluate(AT_THE_END)
    assert shown.locator(".log .line", has_text="step 7").count() == 11  # 7, and 70 to 79: each line once
    shown.get_by_role("region", name="Timeline").wait_for()


AT_THE_END = "(v => v.scrollHeight - v.scrollTop - v.clientHeight < 2)(document.querySelector('.log'))"


def test_what_a_job_uses_is_drawn_while_it_runs_and_when_it_has_ended(dashboard, page, submit, tmp_path, wait_until):
    go = tmp_path / "go"
    job_id = submit(f"print(slow.run_async({str(go)!r}).job_id)").splitlines()[-1]
    shown = page(dashboard(), f"#/jobs/{job_id}")
    usage = shown.get_by_role("region", name="Usage")

    usage.get_by_role("img", name="CPU over").wait_for()
    seconds = "document.querySelector('.graph .value').getTotalLength()"
    before = shown.evaluate(seconds)
    words = usage.get_by_role("img", name="Memory over").get_attribute("aria-label")
    wait_until(lambda: shown.evaluate(seconds) != before, "a longer line, without a request of the page")
    go.touch()
    shown.locator(".headline .status.succeeded").wait_for()

    assert re.search(r"Memory over .* s: now [0-9.]+ MB, at most [0-9.]+ MB of [0-9.]+ GB", words), words
    assert usage.get_by_role("heading", level=3).all_text_contents() == ["CPU", "Memory", "Disk"]
    assert usage.locator(".graph").count() == 3


def test_devices_and_hosts_have_a_line_each_and_their_peaks_are_told_in_words(stored, dashboard, page):
    hosts = [measured(gpus=2, kind="tpu"), measured(gpus=2, kind="tpu")]
    job_id = stored.add(usage=hosts, accelerator="tpu-v4-2x2x2")
    shown = page(dashboard(), f"#/jobs/{job_id}")
    usage = shown.get_by_role("region", name="Usage")
    usage.get_by_role("img", name="TPU memory over").wait_for()

    usage.get_by_text("2 hosts, a line for each").wait_for()
    headings = usage.get_by_role("heading", level=3).all_text_contents()
    assert headings == ["CPU", "Memory", "TPU, 4 chips", "TPU memory", "Disk"]
    words = usage.locator("figcaption").all_text_contents()
    assert words[0] == "now 300 %, at most 320 %, on average 150 %; 400 % are all cores"
    assert words[1] == "now 16.0 GB, at most 9.0 GB of 16.0 GB"
    assert words[3] == "now 280.0 GB, at most 70.0 GB of 80.0 GB on one"
    assert usage.locator("figure").nth(2).locator(".value").count() == 4


def test_a_job_that_was_not_measured_has_no_graphs(stored, dashboard, page):
    job_id = stored.add(log=b"done\n")
    shown = page(dashboard(), f"#/jobs/{job_id}")

    shown.get_by_text("done").wait_for()
    shown.wait_for_load_state("networkidle")

    assert shown.get_by_role("region", name="Usage").count() == 0


def test_a_failed_job_says_why_and_what_to_do(stored, dashboard, page):
    error = {"type": "ValueError", "module": "builtins", "message": "no such thing"}
    job_id = stored.add("failed", error=error, log=b"one\n\x1b[31mred\x1b[0m and \x1b[1mbold\x1b[0m\n")
    shown = page(dashboard(), f"#/jobs/{job_id}")

    shown.get_by_text("train raised ValueError: no such thing").wait_for()
    assert shown.get_by_role("textbox", name="Command").text_content() == f"kinetic jobs logs {job_id}"
    assert shown.locator(".log .ansi-1").text_content() == "red"
    assert shown.locator(".log .ansi-bold").text_content() == "bold"


def test_files_are_previewed_as_pictures_text_and_json(stored, dashboard, page):
    job_id = stored.add(value={"loss": 0.5})
    stored.write_output(job_id, "metrics.json", b'{"loss": 1}')
    stored.write_output(job_id, "notes.txt", b"<b>not bold</b>")
    stored.write_output(job_id, "loss.svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"></svg>')
    shown = page(dashboard(), f"#/jobs/{job_id}")

    shown.get_by_role("button", name="metrics.json").click()
    shown.get_by_text('{\n  "loss": 1\n}').wait_for()
    shown.get_by_role("button", name="notes.txt").click()
    shown.get_by_text("<b>not bold</b>").wait_for()
    shown.get_by_role("button", name="loss.svg").click()
    shown.wait_for_function("() => document.querySelector('.preview img')?.naturalWidth === 40")
    assert '"loss": 0.5' in shown.get_by_role("region", name="Result").text_content()


def test_a_batch_is_a_grid_a_table_that_sorts_and_a_plot(dashboard, page, submit):
    submit(SWEEP)
    shown = page(dashboard(), "#/batches")
    shown.get_by_role("link", name="sweep").click()

    shown.locator(".plot .dot").first.wait_for()
    assert shown.locator(".cells .fill-failed").count() == 1
    assert shown.locator(".plot .dot").count() == 4
    assert shown.get_by_label("What is plotted").input_value() == "loss"
    assert shown.get_by_label("Against which input").input_value() == "lr"
    shown.get_by_role("button", name="loss").click()
    column = shown.locator("tbody tr td:nth-child(5)")
    assert column.all_text_contents() == ["2", "2.5", "5", "10", ""]
    shown.get_by_role("button", name="loss").click()
    assert column.all_text_contents() == ["10", "5", "2.5", "2", ""]
    shown.get_by_label("Against which input").select_option("seed")
    assert "loss against seed" in (shown.locator(".plot").get_attribute("aria-label") or "")


def test_a_batch_that_one_comes_back_to_is_sorted_plotted_and_scrolled_as_it_was_left(dashboard, page, submit):
    group = submit(f"{SWEEP}; print(b.group_id)").splitlines()[-1]
    shown = page(dashboard(), f"#/batches/{group}", height=300)
    column = shown.locator("tbody tr td:nth-child(5)")
    shown.locator(".plot .dot").first.wait_for()
    shown.get_by_role("button", name="loss").click()
    shown.get_by_label("Against which input").select_option("seed")
    shown.locator("tbody a").last.scroll_into_view_if_needed()
    shown.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it is told
    left = shown.evaluate("window.scrollY")

    shown.locator("tbody a").last.click()
    shown.locator(".headline .status").wait_for()
    shown.go_back()

    shown.wait_for_function("left => Math.abs(window.scrollY - left) < 2", arg=left)
    assert left > 100
    assert column.all_text_contents() == ["2", "2.5", "5", "10", ""]
    assert shown.get_by_label("Against which input").input_value() == "seed"


def test_what_is_selected_on_the_page_of_a_batch_stays_while_its_jobs_end(dashboard, page, submit, tmp_path):
    files = [str(tmp_path / f"go{number}") for number in range(3)]
    group = submit(f"print(kinetic.collections.map(slow, {files!r}, name='steps').group_id)").splitlines()[-1]
    shown = page(dashboard(), f"#/batches/{group}")
    code = shown.locator(".idline code")
    code.wait_for()
    code.evaluate("each => getSelection().selectAllChildren(each)")
    Path(files[0]).touch()
    shown.locator(".legend", has_text="1 succeeded").wait_for()
    cell = shown.locator(".cells > *").first.element_handle()
    Path(files[1]).touch()
    shown.locator(".legend", has_text="2 succeeded").wait_for()

    assert shown.evaluate("getSelection().toString()") == group
    assert cell.evaluate("each => each.isConnected")  # a click on it that has begun is not lost
    Path(files[2]).touch()
    shown.locator(".legend", has_text="3 succeeded").wait_for()


# -------------------------------------------------------------------------------------------------------------- acting


def test_cancel_asks_first_and_can_be_refused(dashboard, page, submit):
    job_id = submit("print(slow.run_async('/nowhere').job_id)")
    shown = page(dashboard(), f"#/jobs/{job_id}")

    shown.get_by_role("button", name="Cancel job").click()
    shown.get_by_role("button", name="Keep it").click()
    assert shown.get_by_role("dialog").count() == 0
    assert shown.locator(".headline .status").text_content() in {"Pending", "Running"}
    shown.get_by_role("button", name="Cancel job").click()
    shown.get_by_role("button", name="Cancel the job").click()

    shown.locator(".headline .status", has_text="Cancelled").wait_for()


def test_failed_inputs_are_run_again_from_the_page(dashboard, page, submit):
    group = submit(f"{SWEEP}; print(b.group_id)").splitlines()[-1]
    shown = page(dashboard(), f"#/batches/{group}")

    shown.get_by_role("button", name="Retry 1 failed input").click()

    shown.get_by_text("The failed inputs are run again").wait_for()


def test_a_command_is_copied(stored, dashboard, page):
    job_id = stored.add()
    shown = page(dashboard(), f"#/jobs/{job_id}", permissions=["clipboard-read", "clipboard-write"])

    shown.get_by_role("button", name="Copy log command").click()

    shown.get_by_text("Copied", exact=True).wait_for()
    assert shown.evaluate("navigator.clipboard.readText()") == f"kinetic jobs logs {job_id} --follow"


def test_everything_is_reached_by_the_keyboard(stored, dashboard, page):
    for number in range(30):
        stored.add(function=f"job{number:02}", log=b"needle\nhay\n")
    shown = page(dashboard())
    shown.get_by_role("link", name="job00").wait_for()

    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.id") == "skip"
    shown.keyboard.press("/")
    shown.keyboard.type("job")
    for _ in range(20):
        shown.keyboard.press("Tab")
        if shown.evaluate("document.activeElement.dataset.index") == "0":
            break
    for _ in range(25):
        shown.keyboard.press("ArrowDown")
    assert shown.evaluate("document.activeElement.textContent") == "job25"
    box = shown.evaluate("(b => [b.top, b.bottom, innerHeight])(document.activeElement.getBoundingClientRect())")
    assert 0 < box[0] < box[1] < box[2]
    shown.keyboard.press("Enter")
    shown.get_by_role("heading", name="job25").wait_for()
    shown.locator(".log .line").first.wait_for()
    shown.keyboard.press("/")
    shown.keyboard.type("needle")
    shown.keyboard.press("Enter")
    shown.get_by_text("1 of 1").wait_for()
    assert shown.locator(".log mark").text_content() == "needle"


def test_a_dialog_is_left_by_escape_and_nothing_is_cancelled(dashboard, page, submit):
    job_id = submit("print(slow.run_async('/nowhere').job_id)")
    shown = page(dashboard(), f"#/jobs/{job_id}")
    shown.get_by_role("button", name="Cancel job").focus()

    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.textContent") == "Keep it"
    shown.keyboard.press("Escape")

    assert shown.get_by_role("dialog").count() == 0
    assert shown.locator(".headline .status").text_content() in {"Pending", "Running"}


# --------------------------------------------------------------------------------------------------------- everyone


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_screen(scheme, stored, dashboard, page, submit, axe):
    group = submit(f"{SWEEP}; print(b.group_id)").splitlines()[-1]
    log = b"".join(b"\x1b[3%dmcolor %d\x1b[0m\n" % (number, number) for number in range(8))
    job_id = stored.add(value={"loss": 0.5}, log=log + b"x" * 5000 + b"\n", usage=[measured(gpus=1)])
    stored.write_output(job_id, "notes.txt", b"hello")
    failed = stored.add("failed", error={"type": "ValueError", "module": "builtins", "message": "no " * 80}, log=b"a\n")
    shown = page(dashboard(), scheme=scheme)
    shown.evaluate(axe)
    told: list[object] = []

    for path, ready in {
        "#/jobs": ".rows .row .name",
        f"#/jobs/{job_id}": ".log .line",
        f"#/jobs/{failed}": ".log .line",
        "#/batches": ".batches .row .name",
        f"#/batches/{group}": ".plot .dot",
        "#/jobs/cpu-nothing-20200101-000000-0000000": ".why.failed",
    }.items():
        shown.evaluate(f"location.hash = {path!r}")
        shown.locator(ready).first.wait_for()
        if path == f"#/jobs/{job_id}":
            shown.get_by_role("button", name="notes.txt").click()
            shown.get_by_text("hello").wait_for()
            shown.get_by_role("img", name="GPU memory over").wait_for()
        for width in (1280, 768, 360, 320):
            shown.set_viewport_size({"width": width, "height": 800})
            shown.wait_for_timeout(100)  # one more frame
            found = shown.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
            told += [(path, width, each["id"], [node["html"][:200] for node in each["nodes"]][:5]) for each in found]
            told += [(path, width)] if shown.evaluate("document.documentElement.scrollWidth > innerWidth") else []
    page.wrong[:] = [text for text in page.wrong if "404" not in text]  # the job that does not exist
    assert told == []


def test_the_words_above_a_narrow_page_stay_on_one_line_also_when_it_is_not_connected(stored, dashboard, page):
    served = dashboard()
    shown = page(served, width=320)
    shown.get_by_text("There are no jobs yet.").wait_for()
    connected = shown.evaluate(LINES)

    served.end()
    shown.get_by_text("the dashboard does not answer").wait_for()

    assert [connected, shown.evaluate(LINES)] == [[1, 1]] * 2
    assert not shown.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.wrong.clear()  # the browser says, too, that it is not connected


LINES = """() => [...document.querySelectorAll('nav a')].map((link) => {
  const words = document.createRange();
  words.selectNodeContents(link);
  return new Set([...words.getClientRects()].map((each) => each.top)).size;
})"""


def test_the_colors_follow_the_system_until_one_is_chosen_and_the_choice_stays(stored, dashboard, page):
    shown = page(dashboard(), scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"

    assert shown.evaluate(paper) == "rgb(18, 20, 23)"
    shown.get_by_role("button", name="Colors: auto").click()
    assert shown.evaluate(paper) == "rgb(250, 250, 248)"
    shown.reload()
    assert shown.evaluate(paper) == "rgb(250, 250, 248)"


# ------------------------------------------------------------------------------------------------------------ hostile


def test_names_logs_values_and_files_of_a_hostile_job_are_text(stored, dashboard, page):
    error = {"type": "ValueError", "module": "builtins", "message": f"{EVIL} {BIDI} \x1b]0;title\x07"}
    failed = stored.add(
        "failed", function=EVIL, error=error, log=f"{EVIL}\n{BIDI}\n\x1b]52;c;ZXZpbA==\x07clip\n".encode()
    )
    good = stored.add(function=BIDI, value={EVIL: EVIL, "b": BIDI}, log=b"\xff\xfe\x00 binary\n")
    stored.write_output(good, f"{BIDI}.txt", EVIL.encode())
    stored.write_output(good, "evil.json", json.dumps([EVIL]).encode())
    shown = page(dashboard())

    shown.get_by_role("link", name="<script>").wait_for()
    assert "ab\\u202egnp.exe" in shown.locator(".rows").text_content()
    for job_id in (failed, good):
        shown.evaluate(f"location.hash = '#/jobs/{job_id}'")
        shown.locator(".log .line").first.wait_for()
        shown.wait_for_function(f"() => document.title.startsWith({job_id!r})")
        if job_id == failed:
            assert EVIL in shown.locator(".log").text_content()
            assert "\u202e" not in shown.locator("body").text_content()
            assert shown.locator(".log .line", has_text="clip").text_content() == "clip"
        else:
            for name in ("ab\\u202egnp.exe.txt", "evil.json"):
                shown.get_by_role("button", name=name).click()
                shown.locator(".preview", has_text=name).locator("pre", has_text="<script>").wait_for()
            assert EVIL in shown.get_by_role("region", name="Result").text_content().replace('\\"', '"')
        assert shown.locator("main script, main img[src=x]").count() == 0
        assert "owned" not in shown.title()


def test_a_job_links_to_the_jobs_and_batches_that_it_follows(stored, dashboard, page):
    first = stored.add(function="prepare")
    second = stored.add(function="train", after=[first, "grp-0a1b2c3d"])
    shown = page(dashboard(), f"#/jobs/{second}")

    batch = shown.get_by_label("Facts").get_by_role("link", name="grp-0a1b2c3d")
    assert batch.get_attribute("href") == "#/batches/grp-0a1b2c3d"
    shown.get_by_label("Facts").get_by_role("link", name=first).click()

    shown.get_by_role("heading", name="prepare").wait_for()
    assert shown.url.endswith(f"#/jobs/{first}")


def test_a_line_of_a_megabyte_is_cut_and_shown_on_demand(stored, dashboard, page):
    job_id = stored.add(log=b"before\n" + b"x" * (1 << 20) + b"\nafter\n")
    shown = page(dashboard(), f"#/jobs/{job_id}")

    shown.get_by_text("after", exact=True).wait_for()
    shown.get_by_text("before", exact=True).wait_for()
    long = shown.locator(".log .line").nth(1)
    assert len(long.text_content()) < 3000
    shown.get_by_role("button", name="show all 1,048,576 characters").click()
    assert long.text_content() == "x" * 200_000 + " … and 848,576 more characters"


def test_progress_bars_are_one_line(stored, dashboard, page):
    bar = b"".join(b"\r%3d%%|###   |" % share for share in range(101))
    job_id = stored.add(log=b"begin\n" + bar + b"\nend\n")
    shown = page(dashboard(), f"#/jobs/{job_id}")

    shown.get_by_text("end", exact=True).wait_for()
    assert shown.locator(".log .line").all_text_contents() == ["begin", "100%|###   |", "end"]


def test_the_progress_that_a_job_reports_is_a_bar_that_moves(dashboard, page, submit, tmp_path):
    go, more = tmp_path / "go", tmp_path / "more"
    job_id = submit(f"print(counts.run_async({str(more)!r}, {str(go)!r}).job_id)")
    shown = page(dashboard(), f"#/jobs/{job_id}")
    bar = shown.get_by_role("progressbar", name="Progress")

    shown.get_by_role("region", name="Progress").get_by_text("25 of 100, <b>loss</b> 0.5").wait_for()
    assert bar.get_attribute("aria-valuenow") == "25"
    more.touch()
    shown.get_by_role("region", name="Progress").get_by_text("75 of 100").wait_for()
    assert bar.get_attribute("aria-valuenow") == "75"
    go.touch()
    shown.locator(".headline .status.succeeded").wait_for()


# -------------------------------------------------------------------------------------------------------------- large


def test_bars_of_tqdm_below_each_other_and_of_keras_are_one_line_each(stored, dashboard, page):
    steps = "".join(f"\n\rinner {step}/900\x1b[A" for step in range(901))
    bars = f"begin\n\router 0/2\x1b[K{steps}\router 1/2{steps}\router 2/2\x1b[K\n{' ' * 15}\rend\n"
    keras = KERAS.read_bytes()
    job_id = stored.add(log=bars.encode() + keras)
    shown = page(dashboard(), f"#/jobs/{job_id}")
    shown.locator(".log .line").first.wait_for()

    lines = [line.rstrip() for line in shown.locator(".log .line").all_text_contents()]
    assert lines[:3] == ["begin", "outer 2/2", "end"]
    assert [line[:9] for line in lines[3:]] == [part for epoch in "123" for part in (f"Epoch {epoch}/3", "80/80 ━━━")]


@pytest.mark.timeout(600)  # its store is written, and read for the first time
def test_ten_thousand_jobs_are_listed_within_300_ms(stored, dashboard, page, wait_until):
    for number in range(10_000):
        stored.add("failed" if number % 10 == 0 else "succeeded", function=f"train{number}")
    served = dashboard()
    wait_until(lambda: len(served.get("/jobs")["jobs"]) == 10_000, "the first look", 300)
    shown = page(served)
    shown.get_by_role("link", name="train0").first.wait_for()

    took = [1e9]
    while min(took) > 300 * load_per_core() and len(took) < 12:  # the smallest: other tests run at the same time
        shown.reload()
        shown.wait_for_function("() => document.querySelectorAll('.rows .row').length > 5")
        took.append(shown.evaluate(LISTED))
    assert shown.locator("p", has_text="10,000 jobs").count() == 1
    assert shown.locator(".rows .row").count() < 60
    shown.keyboard.press("End")
    shown.get_by_role("link", name="train9999").wait_for()
    filtered = shown.evaluate(FILTERED)
    print(f"listed in {min(took):.0f} ms (of {[round(each) for each in took[1:]]}), filtered in {filtered:.0f} ms")
    assert min(took) <= 300 * load_per_core()
    assert filtered <= 300 * load_per_core()


def load_per_core() -> float:
    """Return how many processes share a core of this machine, 1 at least: each takes that much longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


# From the answer of the page itself to rows in the document, by the browser's own clock.
LISTED = """() => performance.getEntriesByName('kinetic-listed')[0].startTime
  - performance.getEntriesByType('navigation')[0].responseEnd"""
FILTERED = """() => {
  const field = document.querySelector('input[type=search]'), begun = performance.now();
  field.value = 'train777';
  field.dispatchEvent(new Event('input'));
  document.body.getBoundingClientRect();
  return performance.now() - begun;
}"""


@pytest.mark.timeout(240)
def test_a_log_of_100_mb_is_opened_within_500_ms_and_searched_to_its_first_line(stored, dashboard, page):
    lines = b"".join(
        b"%012d some words of a line of a hundred bytes, which a job may well print %s\n" % (n, b"." * 14)
        for n in range(10_000)
    )
    log = b"the first needle\n" + lines * 100 + b"the last line\n"
    job_id = stored.add(log=log)
    assert len(log) > 95_000_000
    shown = page(dashboard())
    shown.get_by_role("link", name="train").wait_for()

    took = []
    for _ in range(6):  # the smallest: other tests run at the same time
        took.append(shown.evaluate(OPENED, job_id))
        shown.get_by_role("link", name="← Jobs").click()
        shown.get_by_role("link", name="train").wait_for()
    print(f"opened in {min(took):.0f} ms (of {[round(each) for each in took]})")
    assert min(took) <= 500 * load_per_core()
    shown.evaluate(OPENED, job_id)
    shown.get_by_role("searchbox", name="Find in the log").fill("first needle")
    shown.keyboard.press("Enter")
    shown.locator(".log mark", has_text="first needle").wait_for()
    shown.get_by_text("1 of 1").wait_for()
    assert shown.locator(".log .line").first.text_content() == "the first needle"
    shown.get_by_role("button", name="To the end").click()
    shown.get_by_text("the last line").wait_for()
    before = shown.locator(".log .line").count()
    shown.evaluate("document.querySelector('.log').scrollTop = 0")
    shown.wait_for_function(f"() => document.querySelectorAll('.log .line').length > {before}")


OPENED = """(job) => new Promise((done) => {
  const begun = performance.now();
  location.hash = `#/jobs/${job}`;
  const look = () => {
    const last = [...document.querySelectorAll('.log .line')].at(-1);
    if (last && last.textContent === 'the last line') done(performance.now() - begun);
    else setTimeout(look, 1);
  };
  look();
})"""


# ------------------------------------------------------------------------------------------- logs that come in parts


def test_no_character_of_a_log_is_cut_where_the_page_fetches_the_next_part(stored, dashboard, page):
    words = "训练损失下降到零点三验证准确率提高" * 3
    log = "".join(f"{number} {words}\n" for number in range(4_000)).encode()
    long = ("é世" * 100_000).encode()
    job_id = stored.add(log=log + long + b"\n")
    shown = page(dashboard(), f"#/jobs/{job_id}")
    shown.locator(".log .line").first.wait_for()

    assert "\ufffd" not in shown.locator(".log").text_content()
    shown.get_by_role("searchbox", name="Find in the log").fill(f"3 {words}")
    shown.keyboard.press("Enter")
    shown.get_by_text(re.compile("1 of .*00")).wait_for()
    for number in (1_000, 2_000, 3_000, 3_999):
        shown.wait_for_function(SCROLLED_TO, arg=f"{number} {words}")
    assert "\ufffd" not in shown.locator(".log").text_content()


SCROLLED_TO = """(line) => {
  const log = document.querySelector('.log');
  log.scrollTop = log.scrollHeight;
  return [...log.querySelectorAll('.line')].some((each) => each.textContent === line);
}"""


def test_of_long_lines_a_page_keeps_what_it_shows(stored, dashboard, page):
    long = b"".join(b"%d " % number + b"x" * 999_998 + b"\n" for number in range(8))
    job_id = stored.add(log=b"begin\n" + long + b"end\n")
    shown = page(dashboard(), f"#/jobs/{job_id}")
    shown.locator(".log .line").first.wait_for()

    shown.get_by_role("searchbox", name="Find in the log").fill("begin")
    shown.keyboard.press("Enter")
    shown.locator(".log mark").wait_for()
    shown.wait_for_function(SCROLLED_TO, arg="end")

    lengths = shown.evaluate("[...document.querySelectorAll('.log .line')].map(each => each.kineticText.length)")
    assert lengths[1:9] == [200_000] * 8
    shown.get_by_role("button", name="show all 1,000,000 characters").last.click()
    assert (shown.locator(".log .line").nth(8).text_content() or "").endswith("x … and 800,000 more characters")


def test_the_lines_before_and_after_a_very_long_one_are_reached(stored, dashboard, page):
    lines = b"".join(b"line %d\n" % number for number in range(200))
    job_id = stored.add(log=lines + b"needle " + b"x" * 8_000_000 + b"\n" + lines + b"z" * 7_000_000 + b"\nend\n")
    shown = page(dashboard(), f"#/jobs/{job_id}")

    shown.get_by_text("line 199").first.wait_for()  # the page has no room to scroll before
    shown.get_by_role("searchbox", name="Find in the log").fill("needle")
    shown.keyboard.press("Enter")
    shown.locator(".log mark").wait_for()

    shown.locator(".log .line", has_text="line 199").last.wait_for()


def test_what_a_search_finds_is_not_mixed_with_what_was_fetched_for_the_lines_before_it(stored, dashboard, page):
    job_id = stored.add(log=b"begin\n" + b"x" * 3_000_000 + b"\nend\n")
    served = dashboard()
    shown = page(served)
    held: list[Any] = []

    def hold_one(route: Any) -> None:
        if held or "start=-" in route.request.url:
            route.continue_()
        else:
            held.append(route)

    shown.route("**/log?**", hold_one)
    with shown.expect_request(lambda request: "/log?" in request.url and "start=-" not in request.url):
        shown.goto(f"{served.url}#/jobs/{job_id}")
    shown.get_by_role("searchbox", name="Find in the log").fill("begin")
    shown.keyboard.press("Enter")
    shown.locator(".log mark").wait_for()
    late = held[0].request
    with shown.expect_event("requestfinished", lambda request: request == late):
        held[0].continue_()
    shown.evaluate("new Promise(requestAnimationFrame)")

    assert shown.locator(".log .line").first.text_content() == "begin"


def test_pages_that_are_not_in_sight_leave_the_browser_its_connections(dashboard, page, submit, tmp_path):
    go = tmp_path / "go"
    jobs = submit(f"for _ in range(8): print(slow.run_async({str(go)!r}).job_id)").split()
    served = dashboard()
    first = page(served)
    first.context.add_init_script(HIDING)
    pages = [first.context.new_page() for _ in jobs]

    for each, job_id in zip(pages, jobs, strict=True):
        each.goto(f"{served.url}#/jobs/{job_id}")
        each.get_by_role("heading", name="slow").wait_for()
        each.get_by_text("following").or_(each.get_by_text("printed nothing yet")).first.wait_for()
        each.evaluate("setHidden(true)")
    go.touch()
    pages[0].evaluate("setHidden(false)")

    pages[0].get_by_text("last words").wait_for()
    assert pages[0].locator(".log .line", has_text="step 7").count() == 11


# A page of a test is always in sight: what a browser tells one in another tab.
HIDING = """window.setHidden = (hidden) => {
  Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_log_that_is_whole_is_not_asked_for_again_when_its_page_comes_into_sight(stored, dashboard, page):
    job_id = stored.add(log=b"begin\nend\n")
    served = dashboard()
    shown = page(served)
    shown.context.add_init_script(HIDING)
    shown = shown.context.new_page()
    shown.goto(f"{served.url}#/jobs/{job_id}")
    shown.get_by_text("end", exact=True).wait_for()
    shown.get_by_text("Live").wait_for()
    shown.evaluate("setHidden(true)")
    asked: list[str] = []
    shown.on("request", lambda request: asked.append(request.url))

    with shown.expect_response("**/events"):
        shown.evaluate("setHidden(false)")

    assert [url for url in asked if "/log" in url] == []


def test_the_attempts_of_a_job_that_is_tried_again_can_be_chosen_without_a_reload(dashboard, page, submit, tmp_path):
    go = tmp_path / "go"
    job_id = submit(f"print(again.with_options(retries=1).run_async({str(go)!r}).job_id)")
    shown = page(dashboard(), f"#/jobs/{job_id}")
    shown.get_by_text("this is attempt 0").wait_for()

    go.touch()
    shown.get_by_text("this is attempt 1").wait_for()
    shown.get_by_label("Attempt", exact=True).select_option("0")

    shown.get_by_text("this is attempt 0").wait_for()


def test_a_log_whose_stream_broke_off_before_the_job_ended_is_shown_to_its_end(dashboard, page, submit, tmp_path):
    go = tmp_path / "go"
    job_id = submit(f"print(slow.run_async({str(go)!r}).job_id)")
    served = dashboard()
    shown = page(served)
    shown.route("**/log/follow?**", lambda route: route.abort())
    shown.goto(f"{served.url}#/jobs/{job_id}")
    shown.get_by_text("step 299").wait_for()

    go.touch()

    shown.get_by_text("last words").wait_for()
    assert shown.evaluate(AT_THE_END)
    page.wrong.clear()  # the browser says, too, that the stream broke off


def test_a_log_whose_stream_broke_off_while_earlier_lines_are_fetched_is_followed_again(
    dashboard, page, submit, tmp_path, home, wait_until
):
    more, end = tmp_path / "more", tmp_path / "end"
    job_id = submit(f"print(long.run_async({str(more)!r}, {str(end)!r}, lines=4000, length=60).job_id)")

    def has_printed(words: bytes) -> Callable[[], bool]:
        return lambda: any(words in log.read_bytes() for log in home.glob("run/**/log-0-0"))

    wait_until(has_printed(b"many words"), "more than one part of a log")
    served = dashboard()
    shown = page(served)
    held = []
    shown.route("**/log/follow?**", lambda route: route.abort(), times=1)
    shown.route(
        "**/log?**", lambda route: held.append(route) if "start=-" not in route.request.url else route.continue_()
    )
    shown.clock.install()
    with shown.expect_event("requestfailed", lambda request: "follow" in request.url):
        shown.goto(f"{served.url}#/jobs/{job_id}")
    with shown.expect_request("**/log?**"):
        shown.locator(".log").evaluate("view => view.scrollTop = 0")
    shown.clock.run_for(2500)
    more.touch()
    wait_until(has_printed(b"more words"), "what is printed meanwhile")
    (route,) = held
    with shown.expect_response("**/log?**"):
        route.continue_()
    shown.clock.run_for(2500)

    shown.get_by_text("more words").wait_for(state="attached")
    end.touch()
    page.wrong.clear()  # the browser says, too, that the stream broke off


def test_earlier_lines_of_a_running_job_stay_while_it_prints_and_the_end_is_followed_again(
    dashboard, page, submit, tmp_path
):
    more, end = tmp_path / "more", tmp_path / "end"
    job_id = submit(f"print(long.run_async({str(more)!r}, {str(end)!r}).job_id)")
    shown = page(dashboard())
    shown.goto(f"{shown.url}#/jobs/{job_id}")
    shown.get_by_text("many words").wait_for(state="attached")
    first = shown.locator(".log .line").first
    before = first.text_content()
    shown.locator(".log").evaluate("view => view.scrollTop = 0")
    shown.wait_for_function("before => document.querySelector('.log .line').textContent !== before", arg=before)
    earlier = first.text_content()

    more.touch()
    shown.get_by_text("more below").wait_for()

    assert first.text_content() == earlier
    shown.locator(".log").evaluate("view => view.scrollTop = view.scrollHeight")
    shown.get_by_text("more words").wait_for(state="attached")
    end.touch()


# --------------------------------------------------------------------------------------------------------------- away


def test_a_dashboard_that_ended_is_said_on_the_page_and_found_again(stored, dashboard, page, wait_until):
    stored.add(function="fit")
    served = dashboard()
    shown = page(served)
    shown.get_by_role("link", name="fit").wait_for()

    served.end()
    shown.get_by_text("Not connected").wait_for()

    shown.get_by_text("the dashboard does not answer").wait_for()
    assert shown.get_by_role("link", name="fit").is_visible()
    page.wrong.clear()  # the browser says, too, that it is not connected


def test_a_page_of_an_earlier_dashboard_says_that_another_address_is_to_be_opened_and_lives_once_it_was(
    stored, dashboard, page
):
    stored.add(function="fit")
    first = dashboard()
    shown = page(first)
    shown.get_by_role("link", name="fit").wait_for()
    first.end()
    stored.add(function="evaluate")

    second = dashboard("--port", str(first.port))
    shown.get_by_text("use the address that the command printed").wait_for()
    shown.context.new_page().goto(second.url)

    shown.get_by_text("Live").wait_for()
    shown.get_by_role("link", name="evaluate").wait_for()
    assert not shown.get_by_text("use the address that the command printed").is_visible()
    page.wrong.clear()  # the browser says, too, that it was refused


def test_a_foreign_page_reads_nothing_and_frames_nothing(stored, dashboard, browser):
    served = dashboard()
    stored.add(function="fit")
    context = browser.new_context()
    own = context.new_page()
    own.goto(served.url)  # this browser has the cookie
    foreign = context.new_page()
    foreign.route("http://evil.example/", lambda route: route.fulfill(content_type="text/html", body="<p>evil"))
    foreign.goto("http://evil.example/")

    answers = foreign.evaluate(
        """async (origin) => {
          const ask = (options) => fetch(`${origin}/api/v1/jobs`, options).then((r) => r.text(), () => 'refused');
          return Promise.all([ask({credentials: 'include'}), ask({mode: 'no-cors', credentials: 'include'})]);
        }""",
        served.origin,
    )
    assert not any("fit" in answer for answer in answers)
    foreign.evaluate(
        "origin => document.body.append(Object.assign(document.createElement('iframe'), {src: origin}))", served.origin
    )
    foreign.wait_for_timeout(500)
    framed = [frame for frame in foreign.frames if frame != foreign.main_frame]
    assert all("Jobs" not in frame.content() for frame in framed)
    context.close()
