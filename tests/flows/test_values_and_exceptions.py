"""What a function returns or raises arrives as it was, or its job says what of it could not."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from flows.conftest import last_json

import kinetic
from kinetic.errors import JobError, ResultUnreadableError


def test_an_exception_arrives_with_its_type_its_notes_and_its_remote_traceback(submit) -> None:
    job = submit(
        """
        def deep():
            error = KeyError("rate")
            error.add_note("look at the grid")
            raise error

        @on_cpu
        def train():
            try:
                1 / 0
            except ZeroDivisionError:
                deep()
        """
    )

    with pytest.raises(KeyError) as raised:
        job.result()

    assert raised.value.args == ("rate",)
    first, last = raised.value.__notes__
    assert first == "look at the grid"
    assert last.startswith("Remote traceback:\nTraceback (most recent call last):\n")
    assert "in deep" in last
    assert "ZeroDivisionError: division by zero" in last
    assert "During handling of the above exception" in last
    assert "_runner" not in last, "our own frames are not the user's business"


ODD = """
import dataclasses

class KeywordOnly(Exception):
    def __init__(self, *, code, hint):
        super().__init__(f"{code}: {hint}")
        self.code = code

class TakesTwo(ValueError):
    def __init__(self, code, hint):
        super().__init__(hint)
        self.code = code

class OfTheSystem(OSError):
    def __init__(self, path, hint):
        super().__init__(f"{path}: {hint}")
        self.path = path

class OfTwo(RuntimeError, OSError):
    pass

class HoldsAQueue(Exception):
    def __init__(self, text):
        import queue
        super().__init__(text)
        self.queue = queue.SimpleQueue()

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Explodes(Exception):
    def __init__(self, text, depth=0):
        super().__init__(text)
    def __setstate__(self, state):
        raise ValueError("not here")
    def __reduce__(self):
        return Explodes, ("x",), {"a": 1}

@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int
"""


RAISED = [  # each with what must hold of the exception e that arrives
    ('odd.KeywordOnly(code=3, hint="so")', 'type(e) is odd.KeywordOnly and e.code == 3 and str(e) == "3: so"'),
    ('odd.TakesTwo(3, "so")', 'type(e) is odd.TakesTwo and e.code == 3 and e.args == ("so",)'),
    ('odd.OfTheSystem("/x", "gone")', 'type(e) is odd.OfTheSystem and e.path == "/x" and str(e) == "/x: gone"'),
    ('odd.OfTwo(2, "gone")', "type(e) is odd.OfTwo and e.args == (2, 'gone')"),
    ('FileNotFoundError(2, "gone", "/x")', 'type(e) is FileNotFoundError and e.filename == "/x" and e.errno == 2'),
    ('ExceptionGroup("two", [ValueError(1), odd.TakesTwo(2, "b")])', "len(e.exceptions) == 2"),
    ('UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")', "type(e) is UnicodeDecodeError and e.start == 0"),
    ("StopIteration(3)", "type(e) is StopIteration and e.value == 3"),
    ('kinetic.errors.JobTimeoutError("late", why="it is")', 'e.why == "it is" and e.code == "timeout"'),
    ('kinetic.errors.Preempted("saved")', "type(e) is kinetic.errors.Preempted"),
    ("KeyboardInterrupt()", 'type(e) is RuntimeError and "KeyboardInterrupt" in str(e)'),
    ('odd.HoldsAQueue("held")', 'type(e) is odd.HoldsAQueue and str(e) == "held" and "SimpleQueue object" in e.queue'),
    ("odd.Mute()", "type(e) is odd.Mute"),
    ("odd.Frozen(3)", "type(e) is odd.Frozen and e.code == 3"),
    ('odd.Explodes("it")', 'isinstance(e, kinetic.errors.JobError) and "odd.Explodes" in str(e)'),
]


def test_an_exception_of_any_make_arrives_or_is_told(project) -> None:
    project.write("odd.py", ODD)
    project.write(
        "evaluated.py", "import kinetic\nimport odd\n\ndef evaluated(text, **e): return eval(text, globals() | e)"
    )

    out = project.out(
        f"""
        import json
        import kinetic
        from evaluated import evaluated

        @kinetic.run(accelerator="cpu")
        def train(made):
            raise evaluated(made)

        wrong = []
        jobs = [(train.run_async(made), made, check) for made, check in {RAISED!r}]
        for job, made, check in jobs:
            try:
                job.result()
                wrong.append([made, "nothing was raised"])
            except BaseException as e:
                notes = getattr(e, "__notes__", [])
                if not evaluated(check, e=e) or not any("in train" in note for note in notes):
                    wrong.append([made, repr(type(e)), repr(e.args), repr(vars(e)), notes])
        print(json.dumps(wrong))
        """
    )

    assert last_json(out) == []


def test_an_exception_whose_class_exists_only_in_the_job_is_told_and_does_not_explode(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import types
            module = types.ModuleType("only_there")
            exec("class Mistake(Exception): pass", module.__dict__)
            sys.modules["only_there"] = module
            raise module.Mistake("of its own")
        """
    )

    with pytest.raises(JobError, match=r"only_there\.Mistake: of its own") as raised:
        job.result()

    assert "in train" in raised.value.__notes__[-1]
    assert raised.value.code == "exception-not-here"


def test_a_value_that_cannot_be_pickled_is_a_clear_failure_with_its_repr(submit) -> None:
    job = submit("@on_cpu\ndef train(): return {'rows': (number for number in [1])}")

    with pytest.raises(RuntimeError, match=r"returned a builtins.dict that cannot be pickled") as raised:
        job.result()

    assert raised.value.code == "not-picklable"
    assert "generator object" in raised.value.__notes__[0]
    assert job.status() is kinetic.JobStatus.FAILED


def test_a_value_that_cannot_be_pickled_as_a_whole_is_shown_once(submit) -> None:
    job = submit("@on_cpu\ndef train(): return (number for number in [1])")

    with pytest.raises(kinetic.errors.ResultNotPicklableError) as raised:
        job.result()

    assert raised.value.why == "TypeError: cannot pickle 'generator' object"
    assert raised.value.__notes__[0].startswith("The value was: <generator object train")


def test_the_traceback_of_a_value_that_refuses_to_be_pickled_begins_in_the_users_code(submit) -> None:
    job = submit(
        """
        class Open:
            def __reduce__(self): raise ValueError("it is open")

        @on_cpu
        def train(): return [Open()]
        """
    )

    with pytest.raises(kinetic.errors.ResultNotPicklableError, match="it is open") as raised:
        job.result()

    (traceback,) = [note for note in raised.value.__notes__ if note.startswith("Remote traceback")]
    assert "in __reduce__" in traceback
    assert "cloudpickle" not in traceback


def test_what_can_be_pickled_of_a_value_is_kept_in_the_error(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            return {"losses": [3, 2], "steps": (step for step in range(3)), "error": ValueError("a value")}
        """
    )

    with pytest.raises(kinetic.errors.ResultNotPicklableError, match=r"\['steps'\]") as raised:
        job.result()

    assert raised.value.partial["losses"] == [3, 2]
    assert repr(raised.value.partial["error"]) == "ValueError('a value')"
    assert "generator object" in raised.value.partial["steps"]


def test_a_value_whose_class_exists_only_in_the_job_stays_in_the_store(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import types
            module = types.ModuleType("only_there")
            exec("class Model: pass", module.__dict__)
            sys.modules["only_there"] = module
            return module.Model()
        """
    )

    for _ in range(2):  # nothing was removed, so that it can be tried again
        with pytest.raises(ResultUnreadableError, match="only_there") as raised:
            job.result()
    assert "its bytes stay in the store" in raised.value.next
    assert job.status() is kinetic.JobStatus.SUCCEEDED


def test_a_class_made_inside_the_function_comes_along(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            class Point:
                def __init__(self, x): self.x = x
                def double(self): return self.x * 2
            return Point(3)
        """
    )

    assert job.result().double() == 6


def test_a_large_array_peaks_at_little_more_than_twice_its_size_on_either_side(project) -> None:
    pytest.importorskip("numpy")
    size = 256 << 20

    out = project.out(
        f"""
        import json, resource, sys
        import numpy
        import kinetic

        SCALE = 1 if sys.platform == "darwin" else 1024

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * SCALE

        @kinetic.run(accelerator="cpu")
        def train(size):
            import atexit
            before = peak()
            atexit.register(lambda: print("PEAK", peak() - before, flush=True))
            return numpy.ones(size, dtype=numpy.uint8)

        if __name__ == "__main__":
            assert len(train(1)) == 1
            before = peak()
            job = train.run_async({size})
            value = job.result(cleanup=False)
            after = peak()
            assert value.nbytes == {size}
            job.wait(timeout=10)
            print(json.dumps([after - before, job.logs()]))
        """
    )

    here, log = last_json(out)
    there = int(re.search(r"PEAK (\d+)", log)[1])
    assert here <= 2.2 * size, f"here: {here / size:.2f} times"
    assert there <= 2.2 * size, f"in the job: {there / size:.2f} times"


MODEL = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def make():
        import keras
        return keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
"""


@pytest.mark.skipif(find_spec("keras") is None or find_spec("tensorflow") is not None, reason="Keras has its own")
@pytest.mark.timeout(200)
def test_a_model_of_keras_that_needs_a_backend_says_which_and_can_be_collected_then(project) -> None:
    project.write("jobs.py", MODEL)

    said = project.out(
        """
        import os
        import kinetic
        from jobs import make

        if __name__ == "__main__":
            job = make.run_async()
            try:
                job.result()
            except kinetic.errors.ResultUnreadableError as error:
                print(error.next)
                os.environ["KERAS_BACKEND"] = "jax"
            print(job.result().count_params())
        """,
        timeout=180,
    )

    assert said.splitlines()[-2:] == ["set KERAS_BACKEND=jax, as in the job, and collect it again", "6"]
