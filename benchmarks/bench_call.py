"""What one blocking call costs: nothing to do, from a small project, from the call to its value."""

from __future__ import annotations

import time

from _measure import NOOP, Bench, Sandbox, Session, alternate

CALLS = (
    NOOP
    + """
@kinetic.run(accelerator="cpu")
def nap():
    import time
    time.sleep(0.05)

def call():
    begun = time.perf_counter()
    noop()
    return (time.perf_counter() - begun) * 1e3

def notice():
    handle = nap.submit()
    handle.wait()
    seen = time.time()
    path = f"{handle.store.removeprefix('file://')}/{handle.job_id}/result.pkl"
    data = open(path, "rb").read()
    written = os.stat(path).st_mtime
    page = json.loads(data[-16 - int.from_bytes(data[-16:-8], "big") : -16])
    handle.cleanup()
    return [(seen - written) * 1e3, (seen - page["ended"]) * 1e3]

serve(call=call, notice=notice)
"""
)
OBJECTS = """
import datetime, pickle
import kinetic

def made(count):
    day = datetime.date(2026, 1, 1)
    return [day + datetime.timedelta(days=number) for number in range(count)]

dates = kinetic.run(accelerator="cpu")(made)

def call(count):
    begun = time.perf_counter()
    dates(count)
    return (time.perf_counter() - begun) * 1e3

def plain(count):
    begun = time.perf_counter()
    pickle.loads(pickle.dumps(made(count), protocol=5))
    return (time.perf_counter() - begun) * 1e3

serve(call=call, plain=plain)
"""
IMPORTS = """
import kinetic

@kinetic.run(accelerator="cpu")
def imports():
    return sum(__import__(f"module_{number:03}").SIZE for number in range(IMPORTED))

def call():
    begun = time.perf_counter()
    imports()
    return (time.perf_counter() - begun) * 1e3

serve(call=call)
"""
LIBRARIES = """
import kinetic

@kinetic.run(accelerator="cpu")
def imports():
    begun = time.monotonic()
    import jax, keras
    return time.monotonic() - begun

def call():
    begun = time.perf_counter()
    imports()
    return (time.perf_counter() - begun) * 1e3

def warm():
    limit = time.monotonic() + 120
    while imports() > 0.2:  # the process that imports them has not done so yet
        assert time.monotonic() < limit

serve(call=call, warm=warm)
"""
FILES, IMPORTED = 300, 50
PAUSE_SECONDS = 0.03  # what a job leaves to do (its folder, its row) is not the next measurement's to pay


def main() -> None:
    bench = Bench("a blocking call that does nothing", runs=15, quick_runs=5)
    with Sandbox() as sandbox:
        first = []
        for _ in range(3):
            sandbox.forget()
            first.append(_in_a_fresh_process(sandbox))
        cold = alternate(
            bench.runs,
            call=lambda: _cold(sandbox),
            cloudpickle=lambda: sandbox.milliseconds_of_python("-c", "import cloudpickle"),
        )
        bench.ratio(
            "cold: fresh process, no supervisor; vs import cloudpickle", cold["call"], cold["cloudpickle"], 4, "ms"
        )
        fresh = alternate(
            bench.runs,
            call=lambda: _in_a_fresh_process(sandbox),
            cloudpickle=lambda: sandbox.milliseconds_of_python("-c", "import cloudpickle"),
        )
        bench.ratio("fresh process, a supervisor waits; no target", fresh["call"], fresh["cloudpickle"], None, "ms")
        bench.ratio("the very first on a machine; no target", first, cold["cloudpickle"], None, "ms")
        with sandbox.session("calls.py", CALLS) as session:
            warm = alternate(
                bench.runs * 3,
                call=lambda: _rested(session, "call"),
                bare=lambda: _rested(sandbox, "-c", "pass"),
            )
            seen = [session.ask("notice") for _ in range(bench.runs)]
        bench.ratio("warm: a supervisor waits; vs python -c pass", warm["call"], warm["bare"], 3, "ms")
        bench.limit("end noticed after result.pkl was written", [after for after, _ in seen], 10, "ms")
        bench.limit("end noticed after outcome.ended (before it is sealed)", [after for _, after in seen], 10, "ms")
        _of_many_objects(bench, sandbox)
        _of_a_project(bench, sandbox)
        _of_libraries(bench, sandbox)
    bench.end()


def _of_libraries(bench: Bench, sandbox: Sandbox) -> None:
    """Measure calls of a function that imports JAX and Keras, which another process has imported before."""
    with sandbox.session("libraries.py", LIBRARIES) as session:
        session.ask("warm")
        found = alternate(
            min(bench.runs, 5),
            call=lambda: _rested(session, "call"),
            python=lambda: _rested(sandbox, "-c", "import os; os.environ['KERAS_BACKEND'] = 'jax'; import jax, keras"),
        )
    what = "warm: a function that imports jax and keras; vs python -c 'import jax, keras'"
    bench.ratio(what, found["call"], found["python"], 0.2, "ms")


def _of_many_objects(bench: Bench, sandbox: Sandbox) -> None:
    """Measure a call whose value has many small objects, beside Python, which makes, pickles and opens the same."""
    count = 100_000
    with sandbox.session("objects.py", OBJECTS) as session:
        found = alternate(
            min(bench.runs, 5), call=lambda: session.ask("call", count), plain=lambda: session.ask("plain", count)
        )
    bench.ratio(f"warm: a value of {count} dates; vs pickling and opening it", found["call"], found["plain"], 2, "ms")


def _of_a_project(bench: Bench, sandbox: Sandbox) -> None:
    """Measure calls of a function that imports some of its project's modules; bytecode of a job is the next one's."""
    for number in range(FILES):
        functions = "".join(f"def f{each}(x):\n    return [x, {each}, {{'key': x}}]\n\n\n" for each in range(40))
        (sandbox.project / f"module_{number:03}.py").write_text(f"SIZE = {number}\n\n\n{functions}")
    script = IMPORTS.replace("IMPORTED", str(IMPORTED))
    with sandbox.session("imports.py", script) as session:
        session.ask("call")
        warm = [_rested(session, "call") for _ in range(bench.runs)]
    edited = []
    for run in range(bench.runs):
        (sandbox.project / "module_000.py").write_text(f"SIZE = {run}\n")
        time.sleep(PAUSE_SECONDS)  # a file that changed a moment ago is read twice
        with sandbox.session("imports.py", script) as session:
            edited.append(float(session.ask("call")))
    bench.show(f"warm: a project of {FILES} files, {IMPORTED} of them imported", warm, "ms")
    bench.show("… after an edit, in a fresh process", edited, "ms")


def _cold(sandbox: Sandbox) -> float:
    sandbox.quiet()
    sandbox.end_supervisors()
    return _in_a_fresh_process(sandbox)


def _in_a_fresh_process(sandbox: Sandbox) -> float:
    sandbox.quiet()
    with sandbox.session("calls.py", CALLS) as session:
        return float(session.ask("call"))


def _rested(what: Sandbox | Session, *words: str) -> float:
    time.sleep(PAUSE_SECONDS)
    return float(what.ask(*words) if isinstance(what, Session) else what.milliseconds_of_python(*words))


if __name__ == "__main__":
    main()
