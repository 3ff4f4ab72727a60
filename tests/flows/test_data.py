"""Flow (e): data goes in with a call, lies in a store, and is a plain path in the job; on every store that there is."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from flows.conftest import last_json
from servers.gcs import GcsServer
from servers.moto_s3 import MotoServer

from kinetic._backends.local import runtime_files
from kinetic._jobs import locate
from kinetic._stores import open_store
from kinetic._wire import failpoints

BUCKET = "jobs"
NOBODY = 65534

SCRIPT = """
    import dataclasses
    import json
    import os
    import sys
    from collections import OrderedDict, namedtuple
    import kinetic

    Pair = namedtuple("Pair", "left right")

    @dataclasses.dataclass
    class Config:
        train: object
        epochs: int

    class Names(list):
        pass

    def tree(top):
        found = {}
        for folder, folders, files in os.walk(top):
            for name in sorted(folders):
                found[os.path.relpath(os.path.join(folder, name), top) + "/"] = ""
            for name in sorted(files):
                path = os.path.join(folder, name)
                found[os.path.relpath(path, top)] = open(path).read() + ("x" if os.access(path, os.X_OK) else "")
        return found

    @kinetic.run(accelerator="cpu")
    def look(whole, config, *, nested):
        return {
            "tree": tree(whole),
            "same": config.train is whole and nested["pair"].left is whole,
            "types": [type(config).__name__, type(nested).__name__, type(nested["pair"]).__name__,
                      type(nested["names"]).__name__],
            "file": open(nested["names"][0]).read(),
            "name": os.path.basename(nested["names"][0]),
            "project": sorted(os.listdir(".")),
        }

    if __name__ == "__main__":
        whole = kinetic.Data("./set")
        nested = OrderedDict(pair=Pair(whole, 1), names=Names([kinetic.Data("set/a.txt")]))
        print(json.dumps(look(whole, Config(whole, 3), nested=nested)))
"""

SET = {"a.txt": "first", "deep/er/b.txt": "second", "deep/run.sh": "third"}


@pytest.fixture(scope="module")
def gcs():
    server = GcsServer().start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def s3():
    server = MotoServer(1000)
    yield server
    server.close()


@pytest.fixture(params=["files", "gs", "s3"])
def store_url(request, home, tmp_path, monkeypatch):
    """Give the test a store of each kind, empty, with everything in the environment that leads to it."""
    if request.param == "files":
        return f"file://{home}/store"
    scheme = request.param
    bucket = f"{BUCKET}-{os.urandom(4).hex()}"
    server = request.getfixturevalue("gcs" if scheme == "gs" else "s3")
    server.bucket(bucket)
    _lead_to(server, monkeypatch)
    monkeypatch.setenv("KINETIC_STORE", f"{scheme}://{bucket}/below")
    return f"{scheme}://{bucket}/below"


def _lead_to(server, monkeypatch):
    """Put into the environment what leads to a server."""
    variables = server.environment() if isinstance(server, MotoServer) else {"STORAGE_EMULATOR_HOST": server.url}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def project(project):
    for name, text in SET.items():
        project.write(f"set/{name}", text)
    (project.root / "set/deep/run.sh").chmod(0o755)
    (project.root / "set/hollow").mkdir()
    return project


def test_data_is_found_anywhere_in_the_arguments_and_is_a_path_in_the_job(project, store_url):
    found = last_json(project.out(SCRIPT))

    assert found["tree"] == {
        "deep/": "", "hollow/": "", "deep/er/": "",
        "a.txt": "first", "deep/er/b.txt": "second", "deep/run.sh": "thirdx",
    }  # fmt: skip
    assert found["same"] is True
    assert found["types"] == ["Config", "OrderedDict", "Pair", "Names"]
    assert (found["file"], found["name"]) == ("first", "a.txt")
    assert "set" not in found["project"], "what ships as data does not ship with the project as well"
    assert any(True for _ in open_store(store_url).entries("data/manifests/"))


def test_unchanged_data_is_not_sent_again(project, store_url):
    store = open_store(store_url)
    project.out(SCRIPT)
    before = [(entry.key, entry.modified) for entry in store.entries("data/")]

    project.out(SCRIPT)

    assert [(entry.key, entry.modified) for entry in store.entries("data/")] == before


def test_what_a_supervisor_that_died_was_to_remove_of_data_goes_when_the_job_is_collected(
    project, home, monkeypatch, tmp_path, wait_until
):
    killed = tmp_path / "killed"
    monkeypatch.setenv(failpoints.VARIABLE, f"supervisor:told@{killed}")
    project.write("jobs.py", "import os, kinetic\n@kinetic.run(accelerator='cpu')\ndef look(path):\n return len(path)")
    job_id = project.out("import kinetic, jobs\nprint(jobs.look.run_async(kinetic.Data('set')).job_id)").strip()
    wait_until(killed.exists, "the supervisor's death")
    folder = runtime_files.Paths(locate.runtime()).job(job_id)

    noted = (folder / "clearing").exists()
    project.out(f"import kinetic\nkinetic.attach({job_id!r}).result()")

    assert noted
    assert not folder.exists()


def test_data_among_the_inputs_of_a_batch_is_sent_once(project, store_url):
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def read(path, number):
            return open(path + "/a.txt").read() * number

        if __name__ == "__main__":
            data = kinetic.Data("./set")
            print(read.run_async_map([(data, 1), (data, 2), (data, 3)]).results())
        """
    )

    assert out.splitlines()[-1] == "['first', 'firstfirst', 'firstfirstfirst']"
    assert len(list(open_store(store_url).entries("data/manifests/"))) == 1


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_what_lies_in_a_bucket_is_fetched_by_the_job(request, project, home, scheme, monkeypatch):
    bucket = f"sets-{os.urandom(4).hex()}"
    server = request.getfixturevalue("gcs" if scheme == "gs" else "s3")
    server.bucket(bucket)
    _lead_to(server, monkeypatch)
    store = open_store(f"{scheme}://{bucket}")
    for key in ("dir/f.h5", "dir/more/g.h5", "top.txt"):
        store.put(key, key.encode())

    out = project.out(
        f"""
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def look(one, below, everything):
            count = lambda top: sum(len(files) for _, _, files in os.walk(top))
            return open(one).read(), os.path.basename(one), count(below), count(everything)

        if __name__ == "__main__":
            data = [kinetic.Data("{scheme}://{bucket}/" + path) for path in ("dir/f.h5", "dir/", "")]
            print(look.local(*data))
            print(look(*data))
            for path in ("dir/g.h5", "dri/", "dir"):
                try:
                    look(kinetic.Data("{scheme}://{bucket}/" + path), "", "")
                except FileNotFoundError as error:
                    print("missing:", path, type(error).__name__)
        """
    )

    assert out.splitlines()[-5:] == [
        *["('dir/f.h5', 'f.h5', 2, 3)"] * 2,
        "missing: dir/g.h5 DataMissingError",
        "missing: dri/ DataMissingError",
        "missing: dir DataMissingError",
    ]
    queue = next(home.glob("run/*/queue.db"))
    import sqlite3

    with sqlite3.connect(queue) as db:
        assert db.execute("SELECT count(*) FROM jobs").fetchone() == (0,), "nothing was launched in vain"
    db.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace without root depends on the kernel's settings")
def test_a_volume_appears_at_its_path_for_the_job_alone(project, store_url):
    mount = f"/kinetic-test-{os.urandom(4).hex()}/deep"
    out = project.out(
        f"""
        import os
        import kinetic

        @kinetic.run(accelerator="cpu", volumes={{"{mount}": kinetic.Data("./set")}})
        def look():
            return sorted(os.listdir("{mount}")), os.path.exists("{Path(mount).parent}")

        if __name__ == "__main__":
            print(look())
        """
    )

    assert out.splitlines()[-1] == "(['a.txt', 'deep', 'hollow'], True)"
    assert not Path(mount).parent.exists()


def test_a_plain_call_gets_paths_as_well(project, home):
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def read(paths):
            return [open(path).read() for path in paths]

        @kinetic.run(accelerator="cpu")
        def outer(path):
            return read([path])

        if __name__ == "__main__":
            print(read.local([kinetic.Data("set/a.txt")]), outer(kinetic.Data("set/a.txt")))
        """
    )

    assert out.splitlines()[-1] == "['first'] ['first']"


def test_data_in_globals_closures_attributes_and_partials_is_a_path_as_well(project, home):
    out = project.out(
        """
        import functools
        import os
        import kinetic

        DATA = kinetic.Data("set/a.txt")

        class Holder:
            def __init__(self):
                self.data = DATA

            @kinetic.run(accelerator="cpu")
            def own(self):
                return open(self.data).read()

        @kinetic.run(accelerator="cpu")
        def in_a_global():
            return open(DATA).read()

        @kinetic.run(accelerator="cpu")
        def called(function, holder):
            return function(), open(holder.data).read()

        def enclosing():
            data = kinetic.Data("set/a.txt")

            @kinetic.run(accelerator="cpu")
            def inner():
                return open(data).read()

            return inner

        if __name__ == "__main__":
            holder, name = Holder(), functools.partial(os.path.basename, DATA)
            print(in_a_global(), enclosing()(), holder.own(), called(name, holder))
        """
    )

    assert out.splitlines()[-1] == "first first first ('a.txt', 'first')"


def test_data_in_the_defaults_of_a_function_is_a_path_however_it_is_called(project, home):
    project.write(
        "theirs.py",
        """
        import kinetic

        DATA = kinetic.Data("set/a.txt")

        @kinetic.run(accelerator="cpu")
        def read(number, one=DATA, *, more=(1, [DATA]), other=object()):
            return number, open(one).read(), open(more[1][0]).read()
        """,
    )

    out = project.out(
        """
        import kinetic
        from theirs import read

        if __name__ == "__main__":
            print(read(1))
            print(read.run_async_map([2, 3]).results())
            print(read.local(4))
            print(read(5, kinetic.Data("set/deep/run.sh")))
        """
    )

    assert out.splitlines() == [
        "(1, 'first', 'first')",
        "[(2, 'first', 'first'), (3, 'first', 'first')]",
        "(4, 'first', 'first')",
        "(5, 'third', 'first')",
    ]


@pytest.mark.parametrize("way", ["look(deep)", "look.local(deep)"])
def test_data_at_the_bottom_of_five_thousand_lists_is_refused_in_words(project, home, way):
    out = project.out(
        f"""
        import kinetic

        look = kinetic.run(accelerator="cpu")(len)

        if __name__ == "__main__":
            deep = kinetic.Data("set")
            for _ in range(5000):
                deep = [deep]
            try:
                {way}
            except kinetic.errors.KineticError as error:
                print(error.what)
        """
    )

    assert out.startswith("argument 0")
    assert "nested too deeply" in out
    assert len(out) < 150


def test_what_is_refused_in_one_input_of_a_batch_harms_no_other(project, home):
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def read(path):
            return open(path + "/a.txt").read()

        if __name__ == "__main__":
            data = kinetic.Data("set")
            batch = read.run_async_map([data, [{data}], data], input_mode="single")
            print([found if isinstance(found, str) else found.code for found in batch.results(return_exceptions=True)])
        """
    )

    assert out.splitlines()[-1] == "['first', 'data-position', 'first']"


WAYS = ["look(7)", "look.run_async(7).result()", "look.run_async_map([7]).results()[0]",
        "other.with_options(volumes={mount: data})(7)", "nested(7)"]  # fmt: skip


@pytest.mark.parametrize("environment", ["", "isolated"])
def test_volumes_are_there_however_a_function_is_called(project, home, tmp_path, monkeypatch, environment):
    monkeypatch.setenv("KINETIC_LOCAL_ENV", environment)
    (tmp_path / "free").mkdir()
    out = project.out(
        f"""
        import os
        import kinetic

        mount, data = "{tmp_path}/free/at", kinetic.Data("set")

        def plain(number):
            return number, sorted(os.listdir(mount))

        look = kinetic.run(accelerator="cpu", volumes={{mount: data}})(plain)
        other = kinetic.run(accelerator="cpu")(plain)

        @kinetic.run(accelerator="cpu", volumes={{mount: data}})
        def nested(number):
            return look(number)

        if __name__ == "__main__":
            for way in {WAYS}:
                print(eval(way))
        """
    )

    told = [line for line in out.splitlines() if not line.startswith("kinetic: ")]
    assert told == ["(7, ['a.txt', 'deep', 'hollow'])"] * len(WAYS)
    assert list((tmp_path / "free").iterdir()) == []


def test_data_that_holds_the_module_of_the_function_does_not_take_it_from_the_job(project, home):
    (project.root / "theirs").mkdir()
    project.write("theirs/__init__.py", "")
    project.write(
        "theirs/reads.py",
        """
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def names(path):
            found = os.listdir(path) if os.path.isdir(path) else [os.path.basename(path)]
            return sorted(name for name in found if name.endswith(".py"))
        """,
    )
    script = (
        "import kinetic\nfrom theirs.reads import names\nfile = kinetic.Data('theirs/reads.py')\n"
        "print(names(file), names.run_async_map([kinetic.Data('theirs')]).results())\n"
    )

    done = project.run("-c", script)

    assert done.stdout == "['reads.py'] [['__init__.py', 'reads.py']]\n", done.stdout + done.stderr


def test_a_plain_call_says_that_its_volumes_are_not_shown(project, home, tmp_path):
    project.write(
        "script.py",
        f"""
        import kinetic

        @kinetic.run(accelerator="cpu", volumes={{"{tmp_path}/at": kinetic.Data("set")}})
        def look():
            return "looked"

        if __name__ == "__main__":
            print(look.local(), look.local())
        """,
    )

    done = project.run("script.py")

    assert done.stdout == "looked looked\n"
    assert done.stderr.count(f"its volumes are not mounted: there is no {tmp_path}/at") == 1


def test_data_that_a_job_makes_and_returns_is_data_and_its_path_is_looked_for_when_it_is_used(project, home):
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def make():
            return kinetic.Data("./made-there"), kinetic.Data("gs://bucket/made/")

        @kinetic.run(accelerator="cpu")
        def read(path):
            return path

        if __name__ == "__main__":
            local, there = make()
            print(local, there)
            try:
                read(local)
            except kinetic.errors.DataMissingError as error:
                print("missing", error.code)
        """
    )

    assert out.splitlines()[-2:] == [
        "Data('./made-there') Data('gs://bucket/made/')",
        "missing data-missing",
    ]


@pytest.mark.parametrize(("given", "words"), [("{{data}}", "a member of a set"), ("{{data: 1}}", "a key of a dict")])
def test_data_where_no_path_can_take_its_place_is_refused_by_its_position(project, home, given, words):
    done = project.run(
        "-c",
        "import kinetic\n"
        "run = kinetic.run(accelerator='cpu')(len)\n"
        "data = kinetic.Data('set')\n"
        f"try:\n    run([{given.format(data='data')}])\n"
        "except ValueError as error:\n    print(error)",
    )

    assert words in done.stdout
    assert "argument 0[0]" in done.stdout


AS_NOBODY = """
    import os
    import kinetic

    @kinetic.run(accelerator="cpu")
    def harm(path):
        file = path + "/a.txt"
        before = open(file).read()
        try:
            open(file, "a").write("!")
        except PermissionError:
            before += " (and cannot be written)"
        open(path + "/new", "w").close()
        os.unlink(file)
        open(file, "w").write("replaced")
        is_executable = bool(os.stat(path + "/deep/run.sh").st_mode & 0o100)
        return before, os.geteuid(), os.path.isdir(path + "/hollow"), is_executable

    if __name__ == "__main__":
        data = kinetic.Data("set")
        print(harm(data))
        print(harm.run_async_map([data], input_mode="single").results()[0])
        print(harm.with_options(accelerator="tpu-v5litepod-16")(data))
        os.environ["KINETIC_DATA_WRITABLE"] = "1"
        print(harm(data))
        print(sorted(os.listdir("set")), open("set/a.txt").read())
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become somebody else")
@pytest.mark.own_runner
def test_an_ordinary_user_gets_data_that_one_job_cannot_harm_for_another(project, home, tmp_path):
    project.write("script.py", AS_NOBODY)
    for path in [project.root, *project.root.rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    # He may look into our folders, where Python and pytest's folders are, and has no other power.
    become = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    look = ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"]

    done = project.execute(*become, *look, sys.executable, str(project.root / "script.py"))

    assert done.returncode == 0, done.stderr
    protected, own = ("first (and cannot be written)", NOBODY, True, True), ("first", NOBODY, True, True)
    told = [line for line in done.stdout.splitlines() if not line.startswith("kinetic: ")]  # hosts that wait for hosts
    assert told == [*[str(protected)] * 3, str(own), "['a.txt', 'deep', 'hollow'] first"]
