"""A job on this machine finds imported what the one before had to import, and notices nothing else of that."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coverage
import pytest
from flows.conftest import last_json

from kinetic._runner import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers of another process are adopted on Linux only")

LIBRARY = """
import importlib, logging, os
PID, VALUE, SETTING = os.getpid(), 1, os.environ.get("OF_THEIRS")
logging.getLogger().addHandler(logging.NullHandler())
for number in range(60):
    importlib.import_module(f"of_theirs.part{number}")
"""
JOBS = """
    import json, logging, os, random, signal, subprocess, sys, time
    import kinetic

    def seen():
        import of_theirs
        return {
            "preloaded": of_theirs.PID != os.getpid(), "value": of_theirs.VALUE, "setting": of_theirs.SETTING,
            "supervisor": os.getppid(), "random": random.random(), "group": os.getpgid(0) == os.getpid(),
        }

    @kinetic.run(accelerator="cpu")
    def look():
        return seen()

    @kinetic.run(accelerator="cpu")
    def look_at_both():
        import also_theirs
        return {**seen(), "also": also_theirs.PID != os.getpid()}

    @kinetic.run(accelerator="cpu")
    def say():
        print("before")
        found = seen()
        sys.modules["of_theirs"].say()
        return found["preloaded"]

    @kinetic.run(accelerator="cpu")
    def look_late():
        found = seen()
        return found["preloaded"], sys.modules["of_theirs.late"].PID == os.getpid()

    @kinetic.run(accelerator="cpu")
    def who():
        return os.getppid()

    @kinetic.run(accelerator="cpu")
    def other():
        return {"handlers": len(logging.getLogger().handlers), "loaded": "of_theirs" in sys.modules}

    @kinetic.run(accelerator="cpu")
    def compare():
        import importlib.util, pkgutil
        data = pkgutil.get_data("of_theirs", "data.txt")
        library = seen() and sys.modules["of_theirs"]
        import code
        found = {
            "data": data.decode(), "main": library.MAIN is sys.modules["__main__"], "argv": library.ARGV is sys.argv,
            "code": getattr(code, "MINE", False), "loader": type(library.__spec__.loader).__name__,
        }
        return library.PID != os.getpid(), found, library.GENERATOR.random()

    @kinetic.run(accelerator="cpu")
    def without_a_part(many):
        begun = os.environ["KINETIC_OUTPUT_DIR"] + "/begun"
        times = open(begun).read() + "x" if os.path.exists(begun) else "x"
        open(begun, "w").write(times)
        if many:
            child = subprocess.Popen(["sleep", "600"])
            signal.setitimer(signal.ITIMER_REAL, 1)
            sys.modules["of_theirs.part3"] = None
        try:
            import of_theirs
            return seen()["preloaded"], "it has it", len(times)
        except ImportError:
            signal.setitimer(signal.ITIMER_REAL, 0)
            children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            return False, "no part3", len(times), len(children), sys.flags.optimize

    @kinetic.run(accelerator="cpu")
    def end(how):
        here = seen()
        if not how:
            return here
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open("../left.json", "w") as file:
            json.dump({**here, "child": child.pid}, file)
        os.kill(os.getpid(), how)
        time.sleep(600)
"""
DRAWS = """
    @kinetic.run(accelerator="cpu")
    def draw():
        preloaded = seen()["preloaded"]
        import numpy, of_theirs
        own = [of_theirs.NEW.random(), of_theirs.OLD.random(), of_theirs.NEW.spawn(1)[0].random()]
        return preloaded, [numpy.random.random(), *own], [of_theirs.SEEDED.random(), of_theirs.OLD_SEEDED.random()]
"""
GENERATORS = """
import numpy
NEW, SEEDED = numpy.random.default_rng(), numpy.random.default_rng(5)
OLD, OLD_SEEDED = numpy.random.RandomState(), numpy.random.RandomState(5)
"""
TORCH = """
    import json, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def draw():
        begun = time.monotonic()
        import torch
        took = time.monotonic() - begun
        return took, [torch.rand(1).item(), torch.randint(1 << 40, (1,)).item(), torch.initial_seed()]
"""
ARGUED = """
    @kinetic.run(accelerator="cpu")
    def argued(setting=""):
        if setting:
            os.environ["OF_THEIRS"] = setting
        found = seen()
        return found["preloaded"], found["setting"], sys.argv[1:]
"""
LIMITS = """
    @kinetic.run(accelerator="cpu")
    def limit_of():
        return seen()["preloaded"], sys.getrecursionlimit()
"""
FLOATS = """
    @kinetic.run(accelerator="cpu")
    def floats():
        return seen()["preloaded"], sys.modules["of_theirs"].FLOAT
"""
FINDS = """
    @kinetic.run(accelerator="cpu")
    def finds():
        found = []
        class Finder:
            find_spec = lambda name, path=None, target=None: found.append(name)
        sys.meta_path.insert(0, Finder)
        import of_theirs
        return "of_theirs.part3" in found
"""
AT_ONCE = """
    @kinetic.run(accelerator="cpu")
    def at_once():
        import builtins, threading
        begin = threading.Barrier(8)
        def get(name):
            begin.wait()
            __import__(f"lib_{name}")
        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=get, args=(name,)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return seen()["preloaded"], builtins.counts
"""
REPLACED = """
    class Lines(list):
        write = list.append

    @kinetic.run(accelerator="cpu")
    def replaced():
        sys.stdout, sys.stderr = Lines(), None
        return seen()["preloaded"]
"""
PLUGINS = """
    @kinetic.run(accelerator="cpu")
    def plugins():
        import importlib.util
        preloaded = seen()["preloaded"]
        theirs = sys.modules["of_theirs"]
        name = "of_theirs.plugin"
        spec = importlib.util.spec_from_file_location(name, theirs.__path__[0] + "/plugin.py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        import of_theirs.after
        return preloaded, module.VALUE
"""
LISTS = """
    @kinetic.run(accelerator="cpu")
    def lists():
        found = seen()
        return found["preloaded"], sys.modules["of_theirs"].FOUND, sys.modules["of_theirs"].HOURS
"""
WARM = """
    from jobs import *
    limit = time.monotonic() + 60
    while not ({condition}):
        assert time.monotonic() < limit, "the library was never imported before the job began"
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a library of many modules where the project's Python finds it."""
    package = tmp_path / "site-packages" / "of_theirs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    for number in range(60):
        (package / f"part{number}.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")  # one supervisor does all jobs
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    return package


@pytest.fixture
def run(project, library) -> Callable[[str], Any]:
    """Return what runs lines of a client, once the library is imported before jobs, and returns what they print."""
    project.write("jobs.py", JOBS)

    def run(lines: str, condition: str = 'look()["preloaded"]') -> Any:
        code = textwrap.dedent(WARM).format(condition=condition) + textwrap.dedent(lines)
        return last_json(project.out(code))

    return run


def test_a_call_finds_imported_what_the_function_imported_before_and_is_a_child_like_any(run) -> None:
    first, second, plain = run("print(json.dumps([look(), look(), other()]))")

    assert first["preloaded"] is second["preloaded"] is True
    assert first["supervisor"] == second["supervisor"]
    assert first["group"] is second["group"] is True
    assert first["random"] != second["random"]
    assert plain == {"handlers": 0, "loaded": False}, "what the library does to a process, it does to none without it"


def test_what_a_library_prints_is_in_the_log_as_if_the_job_had_imported_it(run, library) -> None:
    (library / "__init__.py").write_text(
        LIBRARY
        + "import sys\nOUT, ERROR = sys.stdout, sys.stderr\nprint('imported')\nos.write(2, b'with a warning\\n')\n"
        "def say():\n    OUT.write('said\\n')\n    ERROR.write('and an error\\n')\n    print('and more')\n"
    )

    preloaded, log = run(
        """
        job = say.run_async()
        print(json.dumps([job.result(cleanup=False), job.logs()]))
    """,
        condition="say()",
    )

    assert preloaded is True
    assert log.splitlines() == ["before", "imported", "with a warning", "said", "and an error", "and more"]


def test_a_job_that_has_replaced_its_streams_imports_a_library_that_printed_something(run, library, project) -> None:
    (library / "__init__.py").write_text(LIBRARY + "print('imported')\n")
    project.write("jobs.py", JOBS + REPLACED)

    assert run("print(json.dumps(replaced()))", condition="replaced()") is True


def test_functions_with_other_libraries_take_turns_and_who_runs_twice_has_its_own(run, library) -> None:
    shutil.copytree(library, library.with_name("also_theirs"))
    also = library.with_name("also_theirs") / "__init__.py"
    also.write_text(LIBRARY.replace("of_theirs", "also_theirs"))

    turns, twice, then = run("""
        turns = [call() for _ in range(3) for call in (look_at_both, look)]
        twice = [look_at_both(), look_at_both()]
        while not twice[-1]["also"]:
            assert time.monotonic() < limit
            twice.append(look_at_both())
        print(json.dumps([turns, twice, look()]))
    """)

    assert [each["preloaded"] for each in turns] == [False, True] + [True, True] * 2
    assert [each["also"] for each in turns[::2]] == [False] * 3, "that process has not imported what others do not need"
    assert twice[-1]["preloaded"] is True
    assert then["preloaded"] is False, "it would have a library that it does not import"


def test_a_function_has_no_library_imported_that_it_did_not_import_when_it_ran_last(run, library, project) -> None:
    (library / "__init__.py").write_text(LIBRARY + "import atexit\natexit.register(print, 'at the end')\n")
    project.write("used.py", "import of_theirs\n")
    project.write("jobs.py", JOBS.replace("        import of_theirs\n", "        from used import of_theirs\n"))
    other = "import kinetic\n@kinetic.run(accelerator='cpu')\ndef look():\n    return 'of another project'\n"
    project.write("other/pyproject.toml", "")
    project.write("other/jobs.py", other)

    logs = run(
        """
        def log_of(job):
            job.result(cleanup=False)
            return job.logs()

        code = "from jobs import *; job = look.run_async(); job.result(cleanup=False); print('log:', job.logs())"
        logs = [subprocess.check_output([sys.executable, "-c", code], text=True, cwd="other")]
        open("used.py", "w").write("class of_theirs:\\n    PID = VALUE = SETTING = 0\\n")
        look()
        print(json.dumps([*logs, log_of(look.run_async())]))
        """
    )

    assert logs == ["log: \n", ""]


def test_log_records_are_shown_as_the_script_asks_whatever_a_library_asks_when_it_is_imported(run, library) -> None:
    (library / "__init__.py").write_text(
        LIBRARY.replace("logging.getLogger().addHandler(logging.NullHandler())", "logging.basicConfig(level=30)")
        + "def say():\n    logging.getLogger('mine').info('hello')\n"
    )

    found = run(
        """
        logging.basicConfig(level=20, format="as asked: %(message)s")
        job = say.run_async()
        print(json.dumps([job.result(cleanup=False), job.logs()]))
    """,
        condition="say()",
    )

    assert found == [True, "before\nas asked: hello\n"]


def test_children_of_a_batch_find_it_as_well(run) -> None:
    found = run("print(json.dumps(look.run_async_map([()] * 4, input_mode='args').results()))")

    assert [each["preloaded"] for each in found] == [True] * 4


def test_a_job_does_not_find_what_another_version_of_a_library_was(run, library) -> None:
    edited, again = run(f"""
        path = {str(library / "__init__.py")!r}
        text = open(path).read().replace("VALUE, SETTING = os.getpid(), 1", "VALUE, SETTING = os.getpid(), 222")
        open(path, "w").write(text)
        found = look()
        while not (last := look())["preloaded"]:
            assert time.monotonic() < limit
        print(json.dumps([found, last]))
    """)

    # Another size, too: Python takes bytecode of a file of the same size and second for its own.
    assert (edited["preloaded"], edited["value"]) == (False, 222)
    assert again["value"] == 222


def test_a_file_that_changes_while_it_is_imported_ahead_is_read_by_the_job(
    project, library, tmp_path, wait_until
) -> None:
    counted = tmp_path / "counted"
    counted.write_text("0")
    count = f"VALUE = int(open({str(counted)!r}).read()) + 1\nopen({str(counted)!r}, 'w').write(str(VALUE))\n"
    (library / "__init__.py").write_text(LIBRARY + count)
    project.write("jobs.py", JOBS)
    look = "from jobs import *\nprint(json.dumps(look()))"

    first = last_json(project.out(look))
    wait_until(lambda: int(counted.read_text() or 0) >= 2, "the import ahead", seconds=60)
    second = last_json(project.out(look))

    assert first["value"] == 1
    assert second["value"] > 2


def test_a_package_that_is_installed_meanwhile_is_noticed(run, library) -> None:
    (library / "__init__.py").write_text(
        LIBRARY + "try:\n    import optional\n    VALUE = 3\nexcept ImportError:\n    pass\n"
    )

    before, after = run(f"""
        before = look()
        open({str(library.parent / "optional.py")!r}, "w").close()
        print(json.dumps([before, look()]))
    """)

    assert (before["value"], after["value"]) == (1, 3)


def test_a_file_that_an_import_reads_is_read_by_the_job_that_has_another_one(run, library, tmp_path, project) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text("1")
    (library / "__init__.py").write_text(
        LIBRARY
        + f"VALUE = int(open({str(settings)!r}).read())\n"
        + "import pathlib\nif pathlib.Path('.of_theirs').exists():\n    VALUE += 10\n"
        + "if os.path.isfile('of_theirs.ini'):\n    VALUE += 100\n"
    )

    found = run(f"""
        found = [look()]
        open({str(settings)!r}, "w").write("2")
        found.append(look())
        for name in (".of_theirs", "of_theirs.ini"):
            while not look()["preloaded"]:
                assert time.monotonic() < limit
            open(name, "w").close()
            found.append(look())
            os.unlink(name)
        print(json.dumps([[each["value"], each["preloaded"]] for each in found]))
    """)

    assert found == [[1, True], [2, False], [12, False], [102, False]]


def test_a_library_finds_what_it_would_find_in_a_job_and_is_found_as_there(run, library, project) -> None:
    (library / "data.txt").write_text("of theirs")
    project.write("code.py", "MINE = True\n")
    (library / "__init__.py").write_text(
        LIBRARY + "import random, sys, __main__ as MAIN\nARGV, GENERATOR = sys.argv, random.Random()\n"
        "if 'code' not in sys.modules:\n    import code\n"
    )

    found = run(
        """
        os.environ["KINETIC_LOCAL_PRELOAD"] = "off"
        plain = compare()
        del os.environ["KINETIC_LOCAL_PRELOAD"]
        while not (last := compare())[0]:
            assert time.monotonic() < limit
        print(json.dumps([plain, last, compare()]))
    """,
        condition="True",
    )

    assert [preloaded for preloaded, *_ in found] == [False, True, True]
    assert [page for _, page, _ in found] == [
        {"data": "of theirs", "main": True, "argv": True, "code": True, "loader": "SourceFileLoader"}
    ] * 3
    assert len({number for *_, number in found}) == 3, "as many generators as jobs"


def test_a_job_that_hides_a_module_from_a_library_begins_again_with_nothing_of_what_it_began(run) -> None:
    found = run("print(json.dumps(without_a_part(True)))", condition="without_a_part(False)[0]")

    assert found == [False, "no part3", 2, 1, 0]


def test_a_job_that_begins_again_has_all_of_its_deadline(run, project) -> None:
    project.write(
        "late.py",
        """
        import os, time
        import kinetic
        from jobs import seen

        @kinetic.run(accelerator="cpu", deadline=6)
        def late(setting):
            if setting:
                begun = os.environ["KINETIC_OUTPUT_DIR"] + "/begun"
                time.sleep(3 if os.path.exists(begun) else 4)
                open(begun, "w").close()
                os.environ["OF_THEIRS"] = setting
            return seen()
        """,
    )

    found = run(
        "print(json.dumps(sys.modules['late'].late('mine')))", condition='__import__("late").late("")["preloaded"]'
    )

    assert (found["preloaded"], found["setting"]) == (False, "mine")


def test_an_exit_handler_runs_whatever_a_module_raises_that_is_asked_for_its_spec(run, library, project) -> None:
    (library / "__init__.py").write_text(
        LIBRARY + "import sys\nclass Lazy:\n    def __getattr__(self, name):\n        raise ImportError(name)\n"
        "sys.modules['of_theirs.lazy'] = Lazy()\nimport atexit\natexit.register(print, 'at the end')\n"
    )

    log = run(
        """
        job = look.run_async()
        job.result(cleanup=False)
        print(json.dumps(job.logs()))
    """,
        condition="look()",
    )

    assert log == "at the end\n"


def test_a_function_that_sets_a_variable_before_it_imports_the_library_has_it_so(run, project) -> None:
    project.write("more.py", "import os\n\ndef set_it():\n    pass\n")
    project.write("jobs.py", JOBS.replace("def seen():\n", "def seen():\n        import more\n        more.set_it()\n"))

    found = run("""
        open("more.py", "w").write('import os\\n\\ndef set_it():\\n    os.environ["OF_THEIRS"] = "mine"\\n')
        values, logs = [], []
        while not values or not values[-1]["preloaded"]:
            assert time.monotonic() < limit
            job = look.run_async()
            values.append(job.result(cleanup=False))
            logs.append(job.logs())
        open("more.py", "w").write("import os\\n\\ndef set_it():\\n    pass\\n")
        print(json.dumps([values, logs, look()]))
    """)

    values, logs, last = found
    assert {each["setting"] for each in values} == {"mine"}
    says = "in an interpreter of its own: of_theirs was imported ahead of it with another value of OF_THEIRS"
    assert [says in log for log in logs] == [True] + [False] * (len(logs) - 1), "later it is imported with that value"
    assert (last["preloaded"], last["setting"]) == (False, None)


def test_a_job_that_begins_again_is_measured_by_coverage_as_any(run, project, monkeypatch) -> None:
    settings = project.write("settings", f"[run]\nsource = {project.root}\ndata_file = {project.root}/found\n")
    monkeypatch.setenv("COVERAGE_PROCESS_START", str(settings))
    project.write("more.py", "import os, random\n\ndef set_it():\n    os.environ['OF_THEIRS'] = str(random.random())\n")
    project.write("jobs.py", JOBS.replace("def seen():\n", "def seen():\n        import more\n        more.set_it()\n"))

    log = run(
        """
        import glob
        log = ""
        while "begins again" not in log:
            assert time.monotonic() < limit
            for path in glob.glob("found.*"):
                os.remove(path)
            job = look.run_async()
            job.result(cleanup=False)
            log = job.logs()
        print(json.dumps(log))
        """,
        condition="True",
    )

    assert "coverage.py" not in log
    found = [coverage.CoverageData(path) for path in project.root.glob("found.*")]
    for each in found:
        each.read()
    assert any(4 in (each.lines(str(project.root / "more.py")) or ()) for each in found)
    assert not any("/work-" in path for each in found for path in each.measured_files()), "no copy, by its interpreter"


def test_a_function_that_sets_a_variable_to_another_value_each_time_begins_again_once(run, project) -> None:
    project.write("more.py", "import os, random\n\ndef set_it():\n    os.environ['OF_THEIRS'] = str(random.random())\n")
    project.write("jobs.py", JOBS.replace("def seen():\n", "def seen():\n        import more\n        more.set_it()\n"))

    later = run(
        """
        def log():
            job = look.run_async()
            job.result(cleanup=False)
            return job.logs()

        while "begins again" not in log():
            assert time.monotonic() < limit
        print(json.dumps([log() for _ in range(20)]))
        """,
        condition="True",
    )

    assert ["begins again" in log for log in later] == [False] * 20


def test_jobs_import_for_themselves_where_that_is_asked_for_and_where_variables_are_others(run) -> None:
    found = run("""
        os.environ["LC_OTHER"] = "1"
        others = look()
        del os.environ["LC_OTHER"]
        os.environ["KINETIC_LOCAL_PRELOAD"] = "off"
        print(json.dumps([others, *(look() for _ in range(4))]))
    """)

    assert [each["preloaded"] for each in found] == [False] * 5


def test_words_of_the_command_line_that_differ_are_no_hindrance_also_where_a_job_begins_again(run, project) -> None:
    project.write("jobs.py", JOBS + ARGUED)

    found = run(
        """
        def with_words(setting, *words):
            sys.argv[1:] = words
            return argued(setting)

        found = [with_words("", f"--rate={number}") for number in range(6)]
        print(json.dumps([found, with_words("other", "--rate=7", "x")]))
        """,
        condition="argued()[0]",
    )

    assert found == [[[True, None, [f"--rate={number}"]] for number in range(6)], [False, "other", ["--rate=7", "x"]]]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "import sys; SEEN = __file__ + '.seen'\nif os.path.exists(SEEN):\n    sys.modules[1] = os\nopen(SEEN, 'w')",
            "object has no attribute 'partition'",
        ),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "started threads"),
        ("import tempfile; FOLDER = tempfile.mkdtemp(dir='.')", "made the temporary folder"),
        ("import subprocess; SLEEPS = subprocess.Popen(['sleep', '60'])", "started processes"),
        ("FILE = open(__file__)", "importing opened /"),
        ("import multiprocessing; LOCK = multiprocessing.Lock()", "importing shared the memory /dev/shm/sem."),
        ("import signal; signal.signal(signal.SIGTERM, print)", "importing set what SIGTERM does to <built-in"),
        ("os.chdir('/tmp')", "importing set the working folder to /tmp"),
        ("os.umask(0o027)", "importing set the umask to 27"),
    ],
)
def test_a_library_after_which_no_process_can_be_forked_is_imported_by_each_job(
    project, library, home, wait_until, line, why
) -> None:
    project.write("jobs.py", JOBS)
    (library / "__init__.py").write_text(LIBRARY + line + "\n")
    look = "from jobs import *\nprint(json.dumps(look()))"

    first = last_json(project.out(look))
    wait_until(
        lambda: any(why in log.read_text() for log in home.glob("run/*/supervisors/*.log")), "the reason", seconds=40
    )
    found = [last_json(project.out(look)) for _ in range(2)]

    assert [each["preloaded"] for each in (first, *found)] == [False] * 3


def test_lazy_modules_stay_so_and_odd_ones_and_folders_that_are_gone_again_are_no_hindrance(run, library) -> None:
    (library / "__init__.py").write_text(
        LIBRARY + "import sys, tempfile, types\nimport importlib.util as util\n"
        "spec = util.find_spec('of_theirs.late')\n"
        "spec.loader = util.LazyLoader(spec.loader)\n"
        "late = sys.modules['of_theirs.late'] = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(late)\n"  # as cupy has cupyx
        "sys.modules['of_theirs.odd'] = types.SimpleNamespace()\n"  # as cupy.fft.config
        "class Odd:\n    __spec__ = property(lambda self: 1 / 0)\n"
        "sys.modules['of_theirs.odder'] = Odd()\n"
        "with tempfile.TemporaryDirectory():\n    pass\n"  # as filelock, which tries what file systems can do
    )
    (library / "late.py").write_text("import os, of_theirs.part1\nPID = os.getpid()\n")

    first, second = run("print(json.dumps([look_late(), look_late()]))", condition="look_late()[0]")

    assert first == second == [True, True], "forked after the import, and loaded by the job that used it"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "started threads"),
        ("OPEN = open(__file__)", "opened /"),
        ("OUTPUTS = os.environ['KINETIC_OUTPUT_DIR']", "read KINETIC_OUTPUT_DIR, another one in each job"),
        ("import kinetic; JOB = kinetic.current().job_id", "KINETIC_JOB_ID, another one in each job"),
        ("FILES = os.listdir()", "read the working folder, another one in each job"),
        ("import mine", "mine.py, which is not a folder of packages"),
    ],
)
def test_only_the_library_after_which_no_process_can_be_forked_is_imported_by_each_job(
    run, library, home, project, monkeypatch, line, why
) -> None:
    project.write("mine.py", "")
    monkeypatch.setenv("PYTHONPATH", f"{library.parent}:{project.root}")  # as an editable install of the project
    other = library.with_name("also_theirs")
    other.mkdir()
    (other / "__init__.py").write_text(f"import os\nPID = os.getpid()\n{line}\n")

    found = run("print(json.dumps([look_at_both(), look_at_both(), look()]))", condition='look_at_both()["preloaded"]')

    assert [(each["preloaded"], each.get("also")) for each in found] == [(True, False), (True, False), (False, None)]
    logs = "".join(log.read_text() for log in home.glob("run/*/supervisors/*.log"))
    assert logs.count("jobs import also_theirs themselves: importing ") == 1
    assert why in logs


def test_libraries_that_cython_compiled_share_its_module_though_each_job_imports_one_of_them(run, library) -> None:
    shared = "import sys, types\nsys.modules.setdefault('_cython_3_3_1', types.ModuleType('_cython_3_3_1'))\n"
    (library / "__init__.py").write_text(LIBRARY + shared)
    other = library.with_name("also_theirs")
    other.mkdir()
    thread = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (other / "__init__.py").write_text(f"import os\nPID = os.getpid()\n{shared}{thread}")

    found = run("print(json.dumps([look_at_both(), look_at_both()]))", condition='look_at_both()["preloaded"]')

    assert [(each["preloaded"], each["also"]) for each in found] == [(True, False)] * 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_job_leaves_no_process_and_the_next_one_finds_the_library(run, wait_until, home, how) -> None:
    found = run(
        f"""
        try:
            end({int(how)})
        except Exception as error:
            message = str(error)
        [path] = __import__("glob").glob(os.environ["KINETIC_HOME"] + "/run/*/jobs/*/left.json")
        print(json.dumps([message, json.load(open(path)), end(0)]))
    """,
        condition='end(0)["preloaded"]',
    )

    message, left, last = found
    assert how.name in message
    assert left["preloaded"] is last["preloaded"] is True
    assert left["supervisor"] == last["supervisor"]
    wait_until(lambda: processes.state(left["child"]) in {"X", "Z"}, "the end of what it had started")


@pytest.mark.timeout(300)
def test_jobs_with_real_libraries_draw_numbers_of_their_own_and_compile(project, monkeypatch) -> None:
    pytest.importorskip("jax")
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    project.write(
        "jobs.py",
        """
        import json, os, time
        import kinetic

        @kinetic.run(accelerator="tpu-v5litepod-4")
        def look():
            begun = time.monotonic()
            import jax
            took = time.monotonic() - begun
            import numpy
            numbers = [float(numpy.random.random()), *numpy.random.default_rng().random(2), os.urandom(2)[0]]
            total = float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((64, 64))))
            return {"took": took, "numbers": numbers, "found": [total, jax.device_count()]}
        """,
    )

    found = json.loads(
        project.out(
            """
            from jobs import *
            found, limit = [look()], time.monotonic() + 120
            while len(found) < 3 or found[-1]["took"] > found[0]["took"] / 4:
                assert time.monotonic() < limit, found
                found.append(look())
            print(json.dumps(found + [look()]))
        """,
            timeout=240,
        ).splitlines()[-1]
    )

    assert [each["found"] for each in found] == [[64.0**3, 4]] * len(found)
    for column in zip(*(each["numbers"][:3] for each in found), strict=True):
        assert len(set(column)) == len(found)


def test_jobs_draw_other_numbers_with_each_generator_of_numpy_that_has_no_seed(run, library, project) -> None:
    pytest.importorskip("numpy")
    (library / "__init__.py").write_text(f"{LIBRARY}{GENERATORS}")
    project.write("jobs.py", JOBS + DRAWS)

    found = run("print(json.dumps([draw() for _ in range(4)]))", condition="draw()[0]")

    assert [preloaded for preloaded, *_ in found] == [True] * 4
    for column in zip(*(drawn for _, drawn, _ in found), strict=True):
        assert len(set(column)) == 4
    assert [seeded for *_, seeded in found] == [found[0][-1]] * 4


@pytest.mark.timeout(300)
def test_jobs_draw_other_numbers_with_torch(project, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    project.write("jobs.py", TORCH)

    found = json.loads(
        project.out(
            """
            from jobs import *
            found, limit = [draw()], time.monotonic() + 200
            while found[-1][0] > found[0][0] / 4:
                assert time.monotonic() < limit, found
                found.append(draw())
            print(json.dumps(found + [draw(), draw()]))
            """,
            timeout=240,
        ).splitlines()[-1]
    )

    for column in zip(*(numbers for _, numbers in found), strict=True):
        assert len(set(column)) == len(found)


def test_what_a_script_has_told_jax_holds_in_libraries_that_ask_when_they_are_imported(run, library, project) -> None:
    pytest.importorskip("jax")
    (library / "__init__.py").write_text(f"{LIBRARY}import jax\nFLOAT = str(jax.dtypes.canonicalize_dtype(float))\n")
    project.write("jobs.py", JOBS + FLOATS)

    plain, *told = run(
        """
        found = [floats()]
        import jax
        jax.config.update("jax_enable_x64", True)
        while len(found) < 3 or not found[-1][0]:
            assert time.monotonic() < limit
            found.append(floats())
        print(json.dumps(found))
        """,
        condition="floats()[0]",
    )

    assert plain == [True, "float32"]
    assert {name for _, name in told} == {"float64"}


def test_what_a_script_has_set_in_python_holds_where_libraries_were_imported_ahead(run, project) -> None:
    project.write("jobs.py", JOBS + LIMITS)

    found = run(
        """
        import sys
        sys.setrecursionlimit(4321)
        found = [limit_of()]
        while len(found) < 3 or not found[-1][0]:
            assert time.monotonic() < limit
            found.append(limit_of())
        print(json.dumps(found))
        """,
        condition="limit_of()[0]",
    )

    assert found[-1] == [True, 4321]
    assert {limit for _, limit in found} == {4321}


def test_a_finder_of_the_functions_own_sees_each_module_of_a_library(run, project) -> None:
    project.write("jobs.py", JOBS + FINDS)

    found = run("print(json.dumps([finds() for _ in range(8)]))")

    assert found == [True] * 8


def test_a_library_may_put_its_own_finders_around_all_others_while_it_is_imported(run, library) -> None:
    (library / "__init__.py").write_text(
        "import sys\n"
        "class Around:\n"
        "    def __init__(self, finder):\n        self.finder = finder\n"
        "    def find_spec(self, fullname, path=None, target=None):\n"
        "        return self.finder.find_spec(fullname, path=path, target=target)\n"  # by their names, as cirq's
        "before, sys.meta_path = sys.meta_path, [Around(finder) for finder in sys.meta_path]\n"
        f"{LIBRARY}\nsys.meta_path = before\n"
    )

    found = run("import of_theirs\nprint(json.dumps([look(), of_theirs.VALUE]))")

    assert (found[0]["preloaded"], found[0]["value"], found[1]) == (True, 1, 1)


def test_a_function_of_the_same_name_in_another_file_has_nothing_of_this_ones_libraries(run, project) -> None:
    project.write(
        "two.py",
        """
        import logging, kinetic

        @kinetic.run(accelerator="cpu")
        def look():
            logging.warning("something is wrong")
        """,
    )

    log = run("""
        import two
        job = two.look.run_async()
        job.result(cleanup=False)
        print(json.dumps(job.logs()))
    """)

    assert log == "WARNING:root:something is wrong\n"  # the handler that the library adds keeps it from being shown


def test_a_library_that_loads_its_own_modules_past_all_finders_lets_no_job_begin_again(run, library, project) -> None:
    (library / "plugin.py").write_text("VALUE = 3\n")
    (library / "after.py").touch()
    project.write("jobs.py", JOBS + PLUGINS)

    found = run("print(json.dumps([plugins() for _ in range(3)]))", condition="plugins()[0]")

    assert found == [[True, 3]] * 3


def test_threads_that_import_libraries_at_the_same_time_import_each_once(run, library, project) -> None:
    parts = [library.with_name(f"lib_{name}") for name in "abcdefgh"]
    for each in parts:
        each.mkdir()
        (each / "__init__.py").write_text(
            "import builtins\ncounts = builtins.__dict__.setdefault('counts', {})\n"
            "counts[__name__] = counts.get(__name__, 0) + 1\nimport of_theirs\n"
            + "".join(f"from {each.name} import part{number}\n" for number in range(30))
        )
        for number in range(30):
            (each / f"part{number}.py").touch()
    project.write("jobs.py", JOBS + AT_ONCE)

    found = run("print(json.dumps([at_once() for _ in range(30)]))", condition="at_once()[0]")

    assert [counts for _, counts in found] == [{each.name: 1 for each in parts}] * 30


def test_a_library_that_lists_a_folder_or_asks_for_the_time_zone_is_as_the_job_would_have_it(
    run, library, tmp_path, monkeypatch, project
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (library / "__init__.py").write_text(
        f"{LIBRARY}import datetime\nFOUND = os.listdir({str(plugins)!r}), os.path.isdir({str(plugins / 'a')!r})\n"
        "HOURS = datetime.datetime.now().astimezone().utcoffset().seconds // 3600\n"
    )
    project.write("jobs.py", JOBS + LISTS)

    before, after = run(
        f"first = lists()\nos.mkdir({str(plugins / 'a')!r})\nprint(json.dumps([first, lists()]))",
        condition="lists()[0]",
    )

    assert before == [True, [[], False], 9]
    assert after == [False, [["a"], True], 9]


def test_a_supervisor_that_is_killed_leaves_no_process(run, wait_until) -> None:
    supervisor = run('print(look()["supervisor"])')
    below = processes.tree_of(supervisor)
    assert len(below) >= 2

    os.kill(supervisor, signal.SIGKILL)

    wait_until(lambda: all(processes.state(pid) in {"X", "Z"} for pid in below), "the end of all its processes")


def test_what_a_library_starts_while_it_is_imported_ahead_ends_with_the_supervisor(
    project, library, tmp_path, wait_until
) -> None:
    project.write("jobs.py", JOBS)
    found = tmp_path / "pid"
    (library / "__init__.py").write_text(
        LIBRARY + "import subprocess, time\nif os.getcwd() == '/':\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"    open({str(found)!r}, 'w').write(str(child.pid))\n    time.sleep(600)\n"
    )
    supervisor = last_json(project.out("from jobs import *\nprint(look()['supervisor'])"))
    wait_until(lambda: found.exists() and found.read_text(), "a process of the library")

    os.kill(supervisor, signal.SIGTERM)

    wait_until(lambda: processes.state(int(found.read_text())) in {"X", "Z"}, "its end")


@pytest.fixture
def hurried(project, home, wait_until) -> Callable[[float, float], None]:
    """Return what sets how long supervisors wait for a job, and how long with libraries, in the code that they run."""

    def hurry(seconds: float, with_libraries: float) -> None:
        found = last_json(project.out("from jobs import *\nother()\nprint(json.dumps(who()))"))
        os.kill(found, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{found}"), "its end")
        [path] = home.glob("run/*/runners/*/kinetic/_backends/local/supervisor.py")
        text = path.read_text()
        assert "_IDLE_SECONDS = 60.0" in text
        assert "_WITH_LIBRARIES = 600.0" in text
        text = text.replace("_IDLE_SECONDS = 60.0", f"_IDLE_SECONDS = {seconds}")
        path.write_text(text.replace("_WITH_LIBRARIES = 600.0", f"_WITH_LIBRARIES = {with_libraries}"))

    return hurry


@pytest.mark.own_runner
def test_an_idle_supervisor_with_libraries_stays_longer_and_ends_by_itself(run, project, hurried, wait_until) -> None:
    hurried(0.5, 3.0)
    plain = last_json(project.out("from jobs import *\nprint(json.dumps(who()))"))
    wait_until(lambda: not os.path.exists(f"/proc/{plain}"), "the end of one without libraries")

    supervisor = run('print(look()["supervisor"])')
    begun = time.monotonic()
    below = processes.tree_of(supervisor)
    wait_until(lambda: not os.path.exists(f"/proc/{supervisor}"), "its end", seconds=60)

    assert time.monotonic() - begun > 2
    wait_until(lambda: all(processes.state(pid) in {"X", "Z"} for pid in below), "the end of what it had forked")


def test_the_process_that_imports_may_be_killed_at_any_time(run) -> None:
    values = run("""
        found = [look()]
        for _ in range(3):
            text = open(f"/proc/{found[-1]['supervisor']}/task/{found[-1]['supervisor']}/children").read()
            for child in map(int, text.split()):
                os.kill(child, signal.SIGKILL)
            found.append(look())
        print(json.dumps(found))
    """)

    assert [each["value"] for each in values] == [1] * 4
    assert len({each["supervisor"] for each in values}) == 1
