"""Whatever a user decorates runs as a job: of a module, a package, a script or no file, and inside another job."""

from __future__ import annotations

from flows.conftest import last_json

MODULE = """
import enum
import threading
import kinetic

LOCK = threading.Lock()
on_cpu = kinetic.run(accelerator="cpu")

class Color(enum.Enum):
    RED = 1

class Mistake(Exception):
    def __init__(self, code, hint):
        super().__init__(f"{code}: {hint}")
        self.code = code

def helper(number):
    with LOCK:
        return number + 1

@on_cpu
def train(number):
    return helper(number)

@on_cpu
def color():
    return Color.RED

@on_cpu
def mistake():
    raise Mistake(3, "so it is")

class Model:
    def __init__(self, size=1):
        self.size = size

    @on_cpu
    def fit(self, rate):
        return self.size * rate

    def plain(self, rate):
        return self.size + rate

    @classmethod
    @on_cpu
    def build(cls, size):
        return cls(size)

    @staticmethod
    @on_cpu
    def version(major):
        return f"v{major}"

class Sub(Model):
    pass
"""


def test_functions_methods_and_whatever_can_be_called_run_from_a_module(project) -> None:
    project.write("lib.py", MODULE)

    out = project.out(
        """
        import json
        from functools import partial
        from lib import Model, Sub, helper, on_cpu, train

        class Doubles:
            def __call__(self, number):
                return number * 2

        def outer(offset):
            def inner(number):
                return number + offset
            return inner

        model = Model(3)
        print(json.dumps([
            train(1),
            model.fit(2),
            Model.fit(model, 2),
            model.fit.run_async(2).result(),
            type(Model.build(2)).__name__,
            type(Sub.build(2)).__name__,
            type(Sub.build.run_async(2).result()).__name__,
            type(Sub.build.with_options(deadline=60)(2)).__name__,
            Model.version(3),
            model.version.submit(3).result(),
            on_cpu(model.plain)(1),
            on_cpu(partial(pow, 2))(5),
            on_cpu(partial(helper))(1),
            on_cpu(Doubles())(4),
            on_cpu(lambda number: number + 40)(2),
            on_cpu(outer(3))(1),
            on_cpu(len)([1, 2]),
            on_cpu(Model)(7).size,
        ]))
        """
    )

    expected = [2, 6, 6, 6, "Model", "Sub", "Sub", "Sub", "v3", "v3", 4, 32, 2, 8, 42, 4, 2, 7]
    assert last_json(out) == expected


def test_a_decorated_method_of_a_class_of_the_script_is_a_job_and_no_warning_of_pools_is_shown(project) -> None:
    project.write(
        "methods.py",
        """
        import kinetic

        class Model:
            def __init__(self, size):
                self.size = size

            @kinetic.run(accelerator="cpu")
            def fit(self, more):
                return self.size + more, kinetic.is_remote()

        print(Model(3).fit(4))
        """,
    )

    done = project.run("methods.py")

    assert done.stdout == "(7, True)\n"
    assert "pickled as the plain function" not in done.stderr


def test_what_a_module_defines_keeps_its_identity_on_both_ways(project) -> None:
    project.write("lib.py", MODULE)

    out = project.out(
        """
        import lib

        assert lib.color() is lib.Color.RED
        assert type(lib.Sub.build(2)) is lib.Sub
        try:
            lib.mistake()
        except lib.Mistake as mistake:
            assert mistake.code == 3
            assert str(mistake) == "3: so it is"
            assert any(note.startswith("Remote traceback:\\nTraceback") for note in mistake.__notes__)
            assert "in mistake" in mistake.__notes__[-1]
        else:
            raise SystemExit("it was not raised")
        with lib.LOCK:   # which no job has touched
            print("all well")
        """
    )

    assert "all well" in out


def test_a_package_with_relative_imports_runs(project) -> None:
    project.write("pack/__init__.py", "")
    project.write("pack/deep/__init__.py", "")
    project.write("pack/tools.py", "def double(n): return 2 * n")
    project.write(
        "pack/deep/jobs.py",
        """
        import kinetic
        from ..tools import double

        @kinetic.run(accelerator="cpu")
        def train(n):
            from . import names
            return [double(n), names.NAME, __name__, __package__]
        """,
    )
    project.write("pack/deep/names.py", "NAME = 'deep'")

    out = project.out("import json; from pack.deep.jobs import train; print(json.dumps(train(2)))")

    assert last_json(out) == [4, "deep", "pack.deep.jobs", "pack.deep"]


def test_the_scripts_own_functions_and_classes_run_and_come_back_as_themselves(project) -> None:
    out = project.out(
        """
        import enum
        from dataclasses import dataclass
        import kinetic

        on_cpu = kinetic.run(accelerator="cpu")
        COUNT = 2

        class Color(enum.Enum):
            RED = 1

        @dataclass(frozen=True)
        class Point:
            x: int

        class Mistake(Exception):
            pass

        class Base:
            kept = []

        class Model(Base):
            def __init__(self, size):
                self.size = size

            @on_cpu
            def fit(self, rate):
                return Point(self.size * rate)

            @classmethod
            @on_cpu
            def build(cls, size):
                return cls(size)

        def helper(number):
            return number + COUNT

        @on_cpu
        def train(color, number):
            global COUNT
            COUNT += 1
            assert color is Color.RED
            return [color, helper(number), Model(3)]

        @on_cpu
        def fails():
            raise Mistake("mine")

        if __name__ == "__main__":
            color, number, model = train(Color.RED, 1)
            assert color is Color.RED
            assert number == 4
            assert COUNT == 2, "the job has its own"
            assert type(model) is Model
            assert Model(3).fit(2) == Point(6)
            assert type(Model.build(2)) is Model
            assert type(Model.build.run_async(2).result()) is Model
            Base.kept.append(1)
            model.fit.run_async(1).result()
            assert Base.kept == [1], "collecting a result must not reset a class"
            try:
                fails()
            except Mistake as mistake:
                print("mine:", mistake)
        """
    )

    assert out.endswith("mine: mine\n")


def test_a_script_without_a_guard_does_not_run_again_in_the_job(project) -> None:
    out = project.out(
        """
        import kinetic
        print("once")

        @kinetic.run(accelerator="cpu")
        def train():
            return 1

        print(train())
        """
    )

    assert out.count("once") == 1


def test_code_without_any_file_runs(project) -> None:
    done = project.run("-c", "import kinetic; print(kinetic.run(accelerator='cpu')(lambda n: n + 1)(1))")

    assert done.stdout.endswith("2\n"), done.stderr


def test_inside_a_job_a_call_runs_in_its_process_and_a_submission_is_a_job_of_its_own(project) -> None:
    project.write("lib.py", MODULE)

    out = project.out(
        """
        import json, os
        import kinetic
        import lib

        @kinetic.run(accelerator="cpu")
        def process():
            return os.getpid()

        @kinetic.run(accelerator="cpu")
        def train():
            jobs = [lib.train.run_async(1), lib.Model(3).fit.run_async(2), process.run_async()]
            first, second, number = (job.result() for job in jobs)
            submitted = [first, second, number != os.getpid()]
            values = [lib.train(1), lib.train(2), lib.Model(3).fit(2), type(lib.Sub.build(1)).__name__]
            return [*values, process() == os.getpid(), submitted]

        if __name__ == "__main__":
            job = train.run_async()
            found = job.result(cleanup=False)
            found.append(job.logs().count("kinetic: train() was called inside a job and runs in this process"))
            print(json.dumps(found))
        """
    )

    assert last_json(out) == [2, 3, 6, "Sub", True, [2, 6, True], 1]
