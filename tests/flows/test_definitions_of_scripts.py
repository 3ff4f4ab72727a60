"""Functions, classes and types that a script defines travel, are made once in the job, and come back as themselves."""

from __future__ import annotations

import base64
import json
import re
import sys

import pytest
from flows.conftest import last_json


def test_values_of_the_scripts_classes_reach_jobs_that_follow_and_other_programs(project) -> None:
    text = """
        import enum
        import sys
        from dataclasses import dataclass
        import kinetic

        class Color(enum.Enum):
            RED = 1

        @dataclass
        class Trained:
            rate: float
            color: Color = Color.RED

        @kinetic.run(accelerator="cpu")
        def train(rate):
            return Trained(rate)

        @kinetic.run(accelerator="cpu")
        def best(trained):  # names none of the classes
            return min(trained, key=lambda each: each.rate)

        @kinetic.run(accelerator="cpu")
        def compare(one, other):
            return [one == other, isinstance(one, Trained), one.color is Color.RED, type(one) is type(other)]

        if sys.argv[1] == "submit":
            print(train.run_async(3).job_id, file=open(sys.argv[2], "w"))
        else:
            first, second = (kinetic.attach(open(name).read().strip()) for name in sys.argv[2:])
            assert compare.run_async(first, second).result() == [True] * 4
            assert best.run_async([first, train.run_async(2)]).result() == Trained(2)
            kept = kinetic.attach(first.job_id)
            print(best.run_async([train.run_async(1), kept]).job_id)
        """

    project.out(text, "submit", "first")
    project.out(text, "submit", "second")  # the same classes of another process
    job_id = project.out(text, "follow", "first", "second").strip()

    assert "Trained(rate=1" in project.out(f"import kinetic; print(kinetic.attach({job_id!r}).result())")


def test_the_scripts_classes_travel_whose_bases_are_told_of_them_by_keywords(project) -> None:
    out = project.out(
        """
        import kinetic

        MODELS = {}

        class Root:
            def __init_subclass__(cls, **others):
                super().__init_subclass__(**others)

        class Model(Root):
            def __init_subclass__(cls, /, name, **others):
                super().__init_subclass__(**others)
                assert cls.layers, "a model has layers"
                MODELS[name] = cls

        class Plain(Root): pass

        class ResNet(Plain, Model, name="resnet"):
            layers = 50

        class Wide(ResNet, name="wide"):
            layers = 101

        @kinetic.run(accelerator="cpu")
        def train(name):
            return MODELS[name](), sorted(MODELS), [each.layers for each in MODELS.values()]

        if __name__ == "__main__":
            made, names, layers = train("wide")
            print(type(made) is Wide, names, layers)

            class Later(Model, name="later"):
                layers = 3
            print(sorted(MODELS))
        """
    )

    assert out == "True ['resnet', 'wide'] [50, 101]\n['later', 'resnet', 'wide']\n"


def test_what_the_script_notes_of_its_classes_is_noted_once_in_the_job_and_what_a_library_notes_as_well(
    project,
) -> None:
    project.write(
        "plugins.py",
        "class Plugin:\n    known = []\n    def __init_subclass__(cls): Plugin.known.append(cls.__name__)\n",
    )
    out = project.out(
        """
        import abc
        import kinetic
        import plugins

        MODELS = []

        class Model(plugins.Plugin):
            def __init_subclass__(cls):
                super().__init_subclass__()
                MODELS.append(cls)

        class Small(Model): pass
        class Large(Model): pass

        class Checked(abc.ABCMeta):
            made = []

            def __new__(kind, name, bases, space, tag=None):
                assert not bases or "layers" in space, f"{name} has no layers"
                return super().__new__(kind, name, bases, space)

            def __init__(cls, name, bases, space, tag=None):
                super().__init__(name, bases, space)
                Checked.made.append(tag)

        class Net(metaclass=Checked):
            @abc.abstractmethod
            def run(self): ...

        class Deep(Net, tag="deep"):
            layers = 50
            def run(self): return super().run(), self.layers

        @kinetic.run(accelerator="cpu")
        def train():
            assert Deep.__abstractmethods__ == frozenset()
            return [each.__name__ for each in MODELS], Checked.made, sorted(plugins.Plugin.known), Deep().run()

        if __name__ == "__main__":
            print(train() == train.local(), train())
        """
    )

    assert out == "True (['Small', 'Large'], [None, 'deep'], ['Large', 'Model', 'Small'], (None, 50))\n"


def test_a_class_made_in_a_job_by_a_metaclass_with_new_comes_back(project) -> None:
    out = project.out(
        """
        import kinetic

        class Meta(type):
            def __new__(kind, name, bases, space):
                return super().__new__(kind, name, bases, space)

        @kinetic.run(accelerator="cpu")
        def make():  # as pydantic makes Page[int]
            kind = Meta("Page[int]", (), {"size": 3})
            return kind, kind()

        if __name__ == "__main__":
            kind, page = make()
            print(type(page) is kind, type(kind) is Meta, page.size)
        """
    )

    assert out == "True True 3\n"


def test_the_scripts_classes_with_slots_come_back_as_themselves(project) -> None:
    out = project.out(
        """
        import enum, json
        from dataclasses import dataclass
        from typing import NamedTuple
        import kinetic

        class Meta(type): pass

        @dataclass(slots=True)
        class Point:
            x: int

        @dataclass(slots=True, weakref_slot=True)
        class Deep(Point):
            y: int = 2

        class Private(metaclass=Meta):
            __slots__ = ("__kept", "kind")

            def __init__(self):
                self.__kept, self.kind = 3, Private

            def kept(self):
                return self.__kept

        class Single:
            __slots__ = "only"

        class Open:
            __slots__ = ("x", "__dict__")

        class Pair(NamedTuple):
            x: int

        class Color(enum.Enum):
            __slots__ = ()
            RED = 1

        class Mistake(Exception):
            __slots__ = ("hint",)

            def __init__(self):
                self.hint = 4

        @kinetic.run(accelerator="cpu")
        def back(values):
            return values, [hasattr(value, "__dict__") for value in values]

        single, open_, mistake = Single(), Open(), Mistake()
        single.only, open_.x, open_.free = 1, 2, 3
        sent = [Point(1), Deep(1), Private(), single, Pair(1), Color.RED, open_, mistake]
        (p, d, private, single, pair, red, open_, mistake), dicts = back(sent)
        print(json.dumps([
            p == Point(1), d == Deep(1), private.kept(), private.kind is Private, single.only, pair == Pair(1),
            type(pair) is Pair, red is Color.RED, open_.x, open_.free, mistake.hint, dicts[:4],
        ]))
        """
    )

    assert last_json(out) == [True, True, 3, True, 1, True, True, True, 2, 3, 4, [False] * 4]


def test_caches_generic_functions_and_names_of_types_of_a_script_run(project) -> None:
    project.write(
        "wrappers.py",
        """
        import functools, threading
        LOCK, CALLS = threading.Lock(), []

        def counted(function):
            @functools.wraps(function)
            def wrapper(*args):
                with LOCK:
                    CALLS.append(args)
                return function(*args)
            return wrapper
        """,
    )
    out = project.out(
        """
        import functools, json, sys, weakref
        from typing import NewType, ParamSpec, TypeVarTuple
        import kinetic, wrappers

        P, Ts, Count = ParamSpec("P"), TypeVarTuple("Ts"), NewType("Count", int)
        if sys.version_info >= (3, 12):
            exec("type Row = list[Row] | dict[str, Row] | Some[int]\\ntype Some[T] = list[T] | None")
        else:
            Row = list

        @functools.cache
        def fibonacci(n):
            return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

        short = functools.lru_cache(maxsize=3)(functools.partial(max, 4))

        @functools.singledispatch
        def kind(value):
            return "other"

        @kind.register
        def _(value: int):
            return "int"

        @wrappers.counted
        def typed(count: Count, *rest: P.args, row: Row = 0) -> tuple[*Ts]:
            return Count(count)

        class Model:
            names = weakref.WeakValueDictionary(own=fibonacci)

            @functools.cached_property
            def size(self):
                return 7

            @functools.lru_cache
            def twice(self, n):
                return 2 * n

            @functools.singledispatchmethod
            def tell(self, value):
                return kind(value)

        @kinetic.run(accelerator="cpu")
        def train(model):
            assert fibonacci.cache_info().currsize == 0 and short.cache_parameters()["maxsize"] == 3
            assert model.names["own"] is fibonacci
            if sys.version_info >= (3, 12):
                row = Row.__value__
                shown = str(row).replace("__main__.", "")  # which Python 3.15 writes
                assert shown == "list[Row] | dict[str, Row] | Some[int]" and row.__args__[0].__args__[0] is Row
                assert Row.__module__ == Some.__module__ == "__main__"
                assert Some.__type_params__ == Some.__value__.__parameters__ and str(Some[int]).endswith("Some[int]")
            values = fibonacci(60), short(3), model.size, model.twice(4), model.tell(1), model.tell(""), typed(9)
            return values, len(wrappers.CALLS), model

        fibonacci(5)
        values, calls, model = train(Model())
        print(json.dumps([*values, calls, type(model) is Model, model.size]))
        """
    )

    assert last_json(out) == [1548008755920, 4, 7, 8, "int", "other", 9, 1, True, 7]


def test_what_decorators_of_a_library_made_and_pickle_by_its_name_in_the_script_runs(project) -> None:
    project.write(
        "library.py",  # as cachetools 8, toolz and multimethod do it
        """
        import functools, importlib

        class Cached:
            def __init__(self, function):
                self.known = {}
                functools.update_wrapper(self, function)

            def __call__(self, n):
                if n not in self.known:
                    self.known[n] = self.__wrapped__(n)
                return self.known[n]

            def __reduce__(self):
                return self.__qualname__

        class CachedMethod:
            def __init__(self, function):
                self.__wrapped__ = function

            def __set_name__(self, owner, name):
                self.owner, self.name = owner, name

            def __get__(self, it, owner=None):
                return it.__dict__.setdefault("kept", {}).setdefault(self, self.__wrapped__(it))

            @staticmethod
            def found(owner, name):
                return owner.__dict__[name]

            def __reduce__(self):
                return self.found, (self.owner, self.name)

        class Curried:
            def __init__(self, func, *given):
                self.partial = functools.partial(func, *given)
                self.__module__, self.__qualname__ = "__main__", func.__name__

            func = property(lambda self: self.partial.func)

            def __call__(self, *rest):
                wanted = self.func.__code__.co_argcount - len(self.partial.args)
                return self.partial(*rest) if len(rest) == wanted else Curried(self.func, *self.partial.args, *rest)

            def __reduce__(self):
                return restored, (f"__main__:{self.__qualname__}", self.partial.args)

        def restored(place, given):
            module, name = place.split(":")
            found = getattr(importlib.import_module(module), name)
            return Curried(found.func, *given) if given else found

        class Methods(dict):
            def __new__(cls, function):
                self = super().__new__(cls)
                self.count = 0
                return self

            def __init__(self, function):
                self.register(function)

            def register(self, function):
                self[next(iter(function.__annotations__.values()))] = function
                return self

            def __setitem__(self, kind, function):
                self.count += 1
                super().__setitem__(kind, function)

            def __call__(self, value):
                return self[type(value)](value)
        """,
    )
    out = project.out(
        """
        import json
        import kinetic, library

        @library.Cached
        def fibonacci(n):
            return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

        class Model:
            @library.CachedMethod
            def size(self):
                return [7]

        @library.Curried
        def add(a, b, c):
            return a + b + c

        @library.Methods
        def kind(value: int):
            return "int"

        @kind.register
        def kind(value: str):
            return "text"

        more, model = add(1), Model()
        fibonacci(5)
        model.size

        @kinetic.run(accelerator="cpu")
        def train(n):
            assert add(1, 2, 3) == 6 and type(model) is Model
            kept = model.size is model.size
            return fibonacci(n), more(2)(n), kept, kind(1), kind(""), kind.count, len(fibonacci.known)

        print(json.dumps(train(60)))
        """
    )

    assert last_json(out) == [1548008755920, 63, True, "int", "text", 2, 61]


def test_classes_that_a_script_makes_in_a_module_of_a_library_are_there_in_the_job_and_come_back(project) -> None:
    project.write(
        "creator.py",  # as DEAP does it
        """
        import copyreg

        class MetaCreator(type):
            def __new__(cls, name, base, attributes):
                return super().__new__(cls, name, (base,), attributes)

            def __init__(cls, name, base, attributes):
                super().__init__(name, (base,), attributes)
                cls.reduce_args = name, base, attributes

            def __reduce__(cls):
                return create, cls.reduce_args

        copyreg.pickle(MetaCreator, MetaCreator.__reduce__)

        def create(name, base, attributes):
            globals()[name] = made = MetaCreator(name, base, attributes)
            return made
        """,
    )
    out = project.out(
        """
        import json
        from functools import partial
        import creator, kinetic

        creator.create("Fitness", object, {"weights": (1.0,)})
        creator.create("Individual", list, {"fitness": creator.Fitness})
        individual = partial(creator.Individual, [1, 2])

        @kinetic.run(accelerator="cpu")
        def named():
            return creator.Individual([3])

        @kinetic.run(accelerator="cpu")
        def held(given):
            return individual(), type(given) is type(individual()), type(given).fitness.weights

        first, (second, is_same, weights), (third, *_) = named(), held(individual()), held(individual())
        same = [type(each) is individual.func for each in (first, second, third)]
        print(json.dumps([first, second, third, same, is_same, weights, creator.Individual is individual.func]))
        """
    )

    assert last_json(out) == [[3], [1, 2], [1, 2], [True, True, True], True, [1.0], True]


_SECRETS = ("TOKEN", "HUB_PASSPHRASE", "api_key", "password", "secret", "credential", "client_secret")


def test_a_registration_that_needs_what_may_be_a_secret_stays_with_the_client_and_a_line_says_so(
    project, home, monkeypatch
) -> None:
    monkeypatch.setenv("HUB_PASSPHRASE", "tr0ub4dor-and-3")
    project.write("library.py", "KNOWN = {}\ndef register(name, entry, **more): KNOWN[name] = entry\n")
    project.write(
        "train.py",
        """
        import collections, dataclasses, json, os
        import kinetic, library

        TOKEN, kept, NAME = "".join(["tr0ub4dor", "-and-4"]), os.environ["HUB_PASSPHRASE"], "wal" + "k"
        CONFIG = {"hub": {"api_key": "".join(["tr0ub4dor", "-and-5"])}, "sort_key": "name"}
        HEADER = "Bearer " + kept

        class Walk:
            pad_token = "<" + "pad>"
        class Login:
            def __init__(self): self.password = "".join(["tr0ub4dor", "-and-6"])
        class Kept:
            word = TOKEN
            @staticmethod
            def fetch(): return CONFIG
        LOGIN = Login()
        class Deferred:  # as that of ibis: it has each attribute, its __dict__ as well
            __slots__ = ()
            def __getattribute__(self, name): return self
        _ = Deferred()
        @dataclasses.dataclass(slots=True)
        class Settings:
            secret: str
        Account = collections.namedtuple("Account", ["credential"])
        SETTINGS = Settings("".join(["tr0ub4dor", "-and-7"]))
        ACCOUNT = Account("".join(["tr0ub4dor", "-and-8"]))
        class Form:
            _fields = property(dict)  # not those of a named tuple
            def __init__(self, client_secret): self.client_secret = client_secret
        FORM = Form("".join(["tr0ub4dor", "-and-9"]))
        def login(): return TOKEN
        def fetch(): return login()
        def again(): return kept
        def header(): return HEADER
        def config(): return CONFIG["hub"]
        def logged_in(): return LOGIN
        def set_up(): return SETTINGS
        def account(): return ACCOUNT
        def form(): return FORM
        def default(word=TOKEN): return word
        def close_over(word):
            return lambda: word
        closure = close_over(TOKEN)

        library.register(NAME, Walk)
        library.register("direct", Walk, token=TOKEN)
        library.register("below", fetch)
        library.register("variable", again)
        library.register("text", header)
        library.register("config", config)
        library.register("object", logged_in)
        library.register("slots", set_up)
        library.register("tuple", account)
        library.register("form", form)
        library.register("class", Kept)
        library.register("default", default)
        library.register("closure", closure)

        @kinetic.run(accelerator="cpu")
        def names(register):  # with it, the library is imported before the function begins
            return sorted(library.KNOWN)

        print(json.dumps(names.run_async(library.register).result(cleanup=False)))
        """,
    )
    done = project.run("train.py")

    assert last_json(done.stdout) == ["walk"]
    needed = [re.findall(rf"it needs {name}, which may be a secret", done.stderr) for name in (*_SECRETS, "pad_token")]
    assert [*map(len, needed)] == [1, 1, 1, 1, 1, 1, 1, 0], done.stderr
    stored = [path.read_bytes() for path in (home / "store").rglob("*") if path.is_file()]
    packed = [base64.b64decode(text) for data in stored for text in re.findall(rb"(?:[A-Za-z0-9+/]{4}){10,}", data)]
    assert any(b"walk" in data for data in packed)  # what is sent with an order
    assert [data for data in (*stored, *packed) if b"tr0ub4dor-and" in data] == []


def test_what_a_script_registers_with_a_library_is_registered_in_the_job_where_that_is_imported(project) -> None:
    project.write(
        "library.py",  # as pandas, omegaconf, gymnasium and timm keep it
        """
        KNOWN = {}

        def register_accessor(name):
            def decorator(kind):
                if name in KNOWN:
                    raise ValueError(f"{name} is known")
                KNOWN[name] = kind
                return kind
            return decorator

        def register_model(function):
            KNOWN[function.__name__] = function
            return function

        class Config:
            @staticmethod
            def register_resolver(name, function): KNOWN[name] = function

        def register(name, entry_point=None):
            KNOWN[name] = entry_point
            with open(f"{name}.txt", "a") as file:  # as a service that counts its models
                print(name, file=file)
        """,
    )
    project.write("unused.py", "def register(name, function): print('unused', name)")
    out = project.out(
        """
        import atexit
        import json
        import kinetic, library, unused
        from library import Config, register_model

        SCALE = 3

        @library.register_accessor("geo")
        class Geo:
            def area(self): return 7 * SCALE

        @register_model
        def tiny(): return Geo().area()

        class Walk: pass

        Config.register_resolver("mul", lambda a, b: a * b * SCALE)
        library.register("walk", entry_point=Walk)
        library.register("a service")
        unused.register("walk", Walk)

        @atexit.register
        def bye(): print("bye")

        def build(name):
            import library
            return library.KNOWN.get(name)

        @kinetic.run(accelerator="cpu")
        def train(n):
            known = [build("geo")().area(), build("tiny")(), build("mul")(2, 3), build("walk") is Walk]
            return known, build("a service"), __import__("sys").modules.get("unused") is None

        @kinetic.run(accelerator="cpu")
        def imports_it(library): return train(1)

        if __name__ == "__main__":
            print(json.dumps([imports_it(Config), imports_it.run_async_map([{"library": Config}]).results()]))
        """
    )

    known = [[21, 21, 18, True], None, True]
    assert last_json(out.replace("bye\n", "")) == [known, [known]]


def test_all_methods_of_a_function_that_a_script_defines_in_several_statements_are_there(project) -> None:
    project.write(
        "library.py",  # as plum does it, with a lock that cannot be pickled
        """
        import functools, threading

        KNOWN = {}

        class Function:
            def __init__(self, function):
                self.methods, self.lock = {}, threading.Lock()
                functools.update_wrapper(self, function)

            def __call__(self, value):
                return self.methods[type(value)](value)

        def dispatch(function):
            made = KNOWN.setdefault(function.__name__, Function(function))
            made.methods[function.__annotations__["value"]] = function
            return made
        """,
    )
    out = project.out(
        """
        import json
        import kinetic, library

        @library.dispatch
        def kind(value: int): return "int"

        class Other: pass

        @library.dispatch
        def kind(value: str): return "text"

        @library.dispatch
        def kind(value: Other): return "other" + kind(1)

        @kinetic.run(accelerator="cpu")
        def train():
            return [kind(1), kind(""), kind(Other())]

        print(json.dumps(train()))
        """
    )

    assert last_json(out) == ["int", "text", "otherint"]


def test_what_decorators_and_metaclasses_make_and_cannot_be_pickled_is_made_again_in_the_job(project) -> None:
    project.write(
        "kernels.py",  # as Triton, torch.library and Numba make them
        """
        import threading

        class Kernel:
            def __init__(self, fn):
                self.fn, self.lock, self.fakes = fn, threading.Lock(), []

            def __call__(self, *args):
                return self.fn(*args)

            def register_fake(self, fn):
                self.fakes.append(fn)

        def kernel(block):
            return Kernel

        class Compiled(type):
            def __init__(kind, *args):
                kind.lock = threading.Lock()
        """,
    )

    out = project.out(
        """
        import json
        import kinetic
        from kernels import Compiled, kernel

        SCALE = 3

        @kernel(block=SCALE)
        def scaled(x):
            return helper(x)

        @scaled.register_fake
        def _(x):
            return x

        @kernel(block=1)
        def helper(x):
            return SCALE * x if x else scaled(1)

        class Touchy:
            @property
            def __class__(self):
                raise RuntimeError("not bound")

            def __getattr__(self, name):
                raise LookupError(name)

        touchy = Touchy()  # is there and does not matter

        class Particle(metaclass=Compiled):
            def __init__(self, mass):
                self.mass = mass

            def moved(self):
                return scaled(self.mass)

        @kinetic.run(accelerator="cpu")
        def train(particle):
            return scaled(0), len(scaled.fakes), particle.moved(), Particle(5).moved()

        print(json.dumps(train(Particle(2))))
        """
    )

    assert last_json(out) == [3, 1, 6, 15]


def test_a_decorator_below_ours_may_make_what_cannot_be_pickled_and_needs_no_option_of_ours(project) -> None:
    project.write(
        "library.py",  # as jaxtyping does it
        """
        import functools
        import weakref

        def checked(function):
            holder = [weakref.ref(function)]

            @functools.wraps(function)
            def inner(*arguments):
                assert all(isinstance(each, int) for each in arguments), f"{holder[0]().__name__} takes numbers"
                return holder[0]()(*arguments)

            return inner
        """,
    )
    out = project.out(
        """
        import json
        import kinetic, library

        HARDWARE = "cpu"

        @kinetic.run(accelerator=HARDWARE)
        @library.checked
        def product(n):
            return n * product(n - 1) if n else ["HARDWARE" in globals()]

        try:
            product("3")
        except AssertionError as error:
            print(json.dumps([product(0), len(product(3)), str(error)]))
        """
    )

    assert last_json(out) == [[False], 6, "product takes numbers"]


def test_functions_of_a_script_keep_what_decorators_of_wrapt_have_put_around_them(project) -> None:
    project.write(
        "wrappers.py",
        """
        import wrapt

        class Wrapper(wrapt.FunctionWrapper):  # as the package Deprecated makes one
            pass
        """,
    )
    out = project.out(
        """
        import kinetic, wrapt
        from wrappers import Wrapper

        def around(wrapped, _instance, args, kwargs):
            return ["around", wrapped(*args, **kwargs)]

        twice = wrapt.decorator(lambda wrapped, _instance, args, _kwargs: wrapped(*args) * 2)

        @kinetic.run(accelerator="cpu")
        @twice
        def count(n):
            return n if n < 2 else count.local(n - 1)

        @twice
        def helper(n):
            return n if n < 2 else helper(n - 1)

        class Model:
            @kinetic.run(accelerator="cpu")
            @wrapt.decorator(around)
            def fit(self, n):
                return self.plain(n), helper(n), wrapped(n)

            @twice
            def plain(self, n):
                return n

        wrapped = Wrapper(lambda n: n, around)

        assert (count(3), Model().fit(3)) == (count.local(3), Model().fit.local(3))
        print(count(3), Model().fit(3))
        """
    )

    assert out.splitlines()[-1] == "8 ['around', (6, 8, ['around', 3])]"


def test_a_function_of_a_library_keeps_what_a_script_has_put_around_it_and_given_to_it(project) -> None:
    project.write(
        "library.py",
        """
        import functools

        def _report(text):
            return text.upper()

        @functools.wraps(_report)
        def report(text):
            return _report(text)

        report.__qualname__ = report.__name__ = "report"
        report.cases = CASES = ["upper"]
        """,
    )
    out = project.out(
        """
        import kinetic, library, wrapt

        @wrapt.decorator
        def captured(wrapped, _instance, args, kwargs):  # as sacred captures functions of its own for an experiment
            return wrapped(*args, **kwargs) + wrapped.ending

        library.report.ending = "!"
        commands = [captured(library.report)]

        @kinetic.run(accelerator="cpu")
        def report(text):
            is_same = library.report.cases is library.CASES, library.report.__wrapped__ is library._report
            return commands[0](text), *is_same

        print(*report("done"))
        """
    )

    assert out.splitlines()[-1] == "DONE! True True"


def test_a_class_that_a_decorator_has_filled_with_what_cannot_be_pickled_is_defined_again_in_the_job(project) -> None:
    project.write(
        "checks.py",
        """
        import weakref

        def checked(kind):  # as jaxtyping checks the fields of a dataclass
            own = kind.__init__
            held = weakref.ref(own)

            def __init__(self, *values):
                held()(self, *values)
                if any(value < 0 for value in values):
                    raise TypeError("negative")

            kind.__init__, kind.kept = __init__, own
            return kind
        """,
    )
    out = project.out(
        """
        import json
        from dataclasses import dataclass
        import kinetic
        from checks import checked

        @checked
        @dataclass
        class Pair:
            x: int
            y: int

        Pair.scale = 3

        @kinetic.run(accelerator="cpu")
        def total(pair):
            try:
                Pair(1, -1)
            except TypeError as error:
                return (pair.x + pair.y) * Pair.scale, str(error), Pair(5, 6)

        number, error, pair = total(Pair(1, 2))
        print(json.dumps([number, error, pair == Pair(5, 6)]))
        """
    )

    assert last_json(out) == [9, "negative", True]


def test_a_script_may_have_a_class_with_the_name_that_ipython_gives_to_its_list_of_cells(project) -> None:
    out = project.out(
        """
        import threading
        import kinetic

        class In:
            guard = threading.Lock()  # what cannot be pickled: then the statement that defines a class is looked for

        @kinetic.run(accelerator="cpu")
        def guarded():
            with In.guard:
                return In.__name__

        print(guarded())
        """
    )

    assert out.splitlines()[-1] == "In"


def test_a_class_that_is_defined_again_in_the_job_may_have_classes_that_name_globals(project) -> None:
    project.write(
        "models.py",
        """
        import threading

        class Model(type):  # as peewee's, whose objects cannot be pickled: they are defined again in the job
            def __init__(kind, *args):
                kind.lock = threading.Lock()
        """,
    )
    out = project.out(
        """
        import kinetic
        from models import Model

        TABLE, ORDER = "users", ["name"]

        class User(metaclass=Model):
            class Meta:
                table = TABLE

                class Sorting:
                    order = ORDER

        @kinetic.run(accelerator="cpu")
        def told():
            with User.lock:
                return User.Meta.table, User.Meta.Sorting.order

        print(told())
        """
    )

    assert out.splitlines()[-1] == "('users', ['name'])"


def test_a_struct_of_a_script_as_msgspec_makes_it_comes_back_as_itself(project) -> None:
    project.write("msgspec/__init__.py", "from msgspec._core import Struct")
    project.write(
        "msgspec/_core.py",  # as it is in 0.20: it adds slots, and takes none
        """
        class StructMeta(type):
            def __new__(kind, name, bases, body):
                if "__slots__" in body:
                    raise TypeError("Struct types cannot define __slots__")
                fields = tuple(body.get("__annotations__", ()))
                return super().__new__(kind, name, bases, {**body, "__slots__": fields})

        class Struct(metaclass=StructMeta):
            def __init__(self, *values):
                for name, value in zip(self.__slots__, values, strict=True):
                    setattr(self, name, value)

            def __reduce__(self):
                return type(self), tuple(getattr(self, name) for name in self.__slots__)
        """,
    )

    out = project.out(
        """
        from __future__ import annotations
        import kinetic, msgspec

        class Options(msgspec.Struct):
            rate: float

        class Config(msgspec.Struct):
            options: Options
            layers: list[int]

            def size(self):
                return len(self.layers)

        @kinetic.run(accelerator="cpu")
        def train(config):
            return type(config) is Config, config.size(), Config(Options(config.options.rate * 2), [])

        *found, back = train(Config(Options(0.5), [1, 2]))
        print(*found, type(back) is Config, back.options.rate)
        """
    )

    assert out == "True 2 True 1.0\n"


def test_structs_of_msgspec_that_no_statement_of_a_script_defines_are_made_in_the_job_and_come_back(project) -> None:
    pytest.importorskip("msgspec")
    out = project.out(
        """
        import kinetic, msgspec
        from typing import ClassVar

        Made = msgspec.defstruct(
            "Made", [("my_id", int), ("tags", list, msgspec.field(default_factory=list))], rename="camel", kw_only=True
        )

        @kinetic.run(accelerator="cpu")
        def encode(made):
            return type(made) is Made, Made(my_id=2), msgspec.json.encode(made)

        def outer():
            class Base(msgspec.Struct, frozen=True):
                size: int
                scale: int = 2

                def total(self):
                    return Base(self.size * self.scale)

            class Sub(Base, tag="sub"):
                limit: "ClassVar[int]" = 9

                def total(self):
                    return super().total()

            @kinetic.run(accelerator="cpu")
            def total(sub):
                return sub.total(), Sub(7), hash(sub) == hash(Sub(3)), (Sub.limit, *Sub.__annotations__)

            base, sub, is_hashed, about = total(Sub(3))
            return base == Base(6), type(sub) is Sub, msgspec.json.encode(sub), is_hashed, *about

        @kinetic.run(accelerator="cpu")
        def local():
            class Point(msgspec.Struct):
                x: int
            return Point(3)

        @kinetic.run(accelerator="cpu")
        def follower(point):
            return point.x

        is_same, made, encoded = encode(Made(my_id=1))
        print(is_same, made == Made(my_id=2), encoded)
        print(*outer())
        print(follower.run_async(local.run_async()).result())
        """
    )

    assert out.splitlines() == [
        """True True b'{"myId":1,"tags":[]}'""",
        """True True b'{"type":"sub","size":7,"scale":2}' True 9 limit""",
        "3",
    ]


def test_a_class_gets_the_slots_that_its_metaclass_makes_of_its_fields_as_pyrsistent_does(project) -> None:
    project.write(
        "library.py",
        """
        class Field:
            pass

        class RecordMeta(type):
            def __new__(kind, name, bases, body):
                fields = [name for name, each in body.items() if isinstance(each, Field)]
                for each in fields:
                    del body[each]
                return super().__new__(kind, name, bases, {**body, "__slots__": fields})

        def restore(kind, values):
            return kind(**values)

        class Record(metaclass=RecordMeta):
            def __init__(self, **values):
                for name, value in values.items():
                    setattr(self, name, value)

            def __reduce__(self):
                return restore, (type(self), {name: getattr(self, name) for name in self.__slots__})
        """,
    )
    out = project.out(
        """
        import json
        import kinetic, library

        class Point(library.Record):
            x = library.Field()
            y = library.Field()

            def total(self):
                return self.x + self.y

        @kinetic.run(accelerator="cpu")
        def train(given):
            return type(given) is Point, given.total(), Point(x=given.y, y=7)

        same, total, back = train(Point(x=1, y=2))
        print(json.dumps([same, total, type(back) is Point, back.total()]))
        """
    )

    assert last_json(out) == [True, 3, True, 9]


def test_a_generic_model_with_its_parameters_is_the_one_that_the_function_asks_for_as_in_pydantic(project) -> None:
    project.write(
        "library.py",
        """
        made = {}

        class Model:
            __pydantic_generic_metadata__ = {"origin": None, "args": (), "parameters": ()}

            def __class_getitem__(cls, args):
                args = args if isinstance(args, tuple) else (args,)
                if (cls, args) not in made:
                    generic = {"origin": cls, "args": args, "parameters": ()}
                    name = f"{cls.__name__}[{args[0].__name__}]"
                    body = {"__module__": cls.__module__, "__pydantic_generic_metadata__": generic}
                    made[cls, args] = type(name, (cls,), body)
                return made[cls, args]
        """,
    )
    out = project.out(
        """
        import json
        import kinetic, library

        class Item:
            pass

        class Page(library.Model):
            pass

        @kinetic.run(accelerator="cpu")
        def turn(page):
            return isinstance(page, Page[Item]), isinstance(page, Page[int]), Page[Item](), Page[str]()

        ours, other, back, made = turn(Page[Item]())
        print(json.dumps([ours, other, type(back) is Page[Item], type(made) is Page[str]]))
        """
    )

    assert last_json(out) == [True, False, True, True]


def test_what_a_class_statement_makes_that_is_not_a_class_is_made_again_in_the_job(project) -> None:
    project.write(
        "library.py",  # as zope.interface does it
        """
        class InterfaceClass:
            def __init__(self, name, bases=(), body=None):
                self.__name__, self.__module__ = name, (body or {}).get("__module__", __name__)
                self.names, self.implementers = [*(body or {})], []

            def __reduce__(self):
                return self.__name__

            def __call__(self, given):
                return given

            def implemented_by(self, kind):
                return kind in self.implementers

        Interface = InterfaceClass("Interface")

        def implementer(interface):
            def decorate(kind):
                interface.implementers.append(kind)
                kind.interface = interface
                return kind
            return decorate
        """,
    )
    out = project.out(
        """
        import json
        import kinetic, library

        class IModel(library.Interface):
            def fit(x):
                pass

        @library.implementer(IModel)
        class Model:
            def fit(self, x):
                return 2 * x

        class Empty:
            def __reduce__(self):
                return "Empty"

            def __call__(self):
                return 0

        Empty = Empty()

        @kinetic.run(accelerator="cpu")
        def train(x):
            return Model().fit(x), Model.interface is IModel, "fit" in IModel.names, IModel

        @kinetic.run(accelerator="cpu")
        def other():
            return type(Empty).__name__

        fitted, same, has_fit, back = train(3)
        try:
            found = other()
        except Exception as error:
            found = type(error).__name__
        print(json.dumps([fitted, same, has_fit, back is IModel, found != "type"]))
        """
    )

    assert last_json(out) == [6, True, True, True, True]


def test_what_a_script_adds_to_a_class_that_its_metaclass_gives_private_slots_as_pydantic_1_does_is_kept(
    project,
) -> None:
    project.write(
        "library.py",
        """
        class ModelMeta(type):
            def __new__(kind, name, bases, body):
                private = {name for name in body.get("__annotations__", ()) if name.startswith("_")}
                return super().__new__(kind, name, bases, {**body, "__slots__": {*body.get("__slots__", ())} | private})

        class Model(metaclass=ModelMeta):
            pass
        """,
    )
    out = project.out(
        """
        from __future__ import annotations  # else a class body of Python 3.14 does not have them

        import json
        import kinetic, library

        class Item(library.Model):
            _price: int

        Item.doubled = lambda self: 2 * self._price

        @kinetic.run(accelerator="cpu")
        def train(price):
            item = Item()
            item._price = price
            return item.doubled()

        print(json.dumps(train(4)))
        """
    )

    assert last_json(out) == 8


def test_a_class_of_a_cell_that_keeps_its_methods_as_numba_does_is_made_again_in_the_job(project) -> None:
    project.write(
        "classes.py",
        """
        import functools, threading, types

        class JitClass(type):
            def __new__(kind, name, bases, body):
                made = super().__new__(kind, name, bases, {"__module__": body["__module__"], "lock": threading.Lock()})
                methods = {name: types.SimpleNamespace(py_func=each) for name, each in body.items() if callable(each)}
                made.class_type = types.SimpleNamespace(jit_methods=methods)
                return made

            def __call__(kind, *args):
                return functools.partial(kind.class_type.jit_methods["get"].py_func, *args)
        """,
    )

    out = project.out(
        """
        import linecache
        import kinetic
        from classes import JitClass

        cell = "class Particle(metaclass=JitClass):\\n    def get(x):\\n        return 2 * x\\n"
        linecache.cache["<cell 1>"] = (len(cell), None, cell.splitlines(keepends=True), "<cell 1>")
        exec(compile(cell, "<cell 1>", "exec"), globals())

        @kinetic.run(accelerator="cpu")
        def train():
            return Particle(4)()

        print(train())
        """
    )

    assert last_json(out) == 8


def test_a_class_or_mark_of_a_module_is_that_one_in_the_job_whatever_it_says_of_its_name(project) -> None:
    project.write(
        "shapes.py",
        """
        import collections, enum
        import makers

        Point = collections.namedtuple("P", "x y")
        Color = enum.Enum("C", "RED BLUE")
        Box = makers.make_class()
        UNSET = object()
        Late = None
        """,
    )
    project.write("makers.py", "def make_class():\n    class Made:\n        size = 1\n    return Made\n")
    out = project.out(
        """
        import json
        import kinetic
        import makers, shapes
        from shapes import UNSET, Box, Color, Point

        shapes.Late = makers.make_class()  # the job's module has none

        @kinetic.run(accelerator="cpu")
        def same(point, color, box, late, given=UNSET):
            values = [point, color, box, Point(1, 2), Color.BLUE, Box()]
            own = [shapes.Point, shapes.Color, shapes.Box] * 2
            is_unset = given is UNSET is shapes.UNSET
            kept = [isinstance(each, kind) for each, kind in zip(values, own)]
            return kept, color is Color.RED, values, late, is_unset, UNSET

        said, is_red, values, late, is_unset, unset = same(Point(3, 4), Color.RED, Box(), shapes.Late())
        kinds = [Point, Color, Box] * 2
        back = [isinstance(each, kind) for each, kind in zip(values, kinds)]
        print(json.dumps([said, is_red, back, late.size, is_unset, unset is UNSET]))
        """
    )

    assert last_json(out) == [[True] * 6, True, [True] * 6, 1, True, True]


def test_members_of_the_scripts_enums_have_in_the_job_what_they_have_in_the_script(project) -> None:
    out = project.out(
        """
        import datetime, enum, json
        from dataclasses import dataclass
        import kinetic

        class Planet(enum.Enum):
            EARTH = 6.0, 2.0
            TERRA = EARTH
            def __init__(self, mass, radius):
                self.mass, self.radius = mass, radius

        class Axis(bytes, enum.Enum):
            def __new__(kind, value, label):
                it = bytes.__new__(kind, [value])
                it._value_, it.label = value, label
                return it
            X = 0, "the first"
            Y = 1, "the second"

        class Right(enum.Flag, boundary=enum.KEEP):
            READ, WRITE = 1, 2
            BOTH = READ | WRITE
            ALL = 15

        @dataclass(frozen=True)
        class Animal:
            legs: int

        class Pet(Animal, enum.Enum):
            BIRD = 2

        class Day(datetime.date, enum.Enum):
            FIRST = 2026, 11, 30

        class Shape(tuple, enum.Enum):
            SQUARE = 2, 2

        def told(planet, axis):
            rights = Right(3) is Right.BOTH, Right.BOTH.name, Right.READ in Right.BOTH, (~Right.READ).value, len(Right)
            own = planet is Planet.TERRA, list(Planet.__members__), planet.mass / planet.radius, Planet((6.0, 2.0)).name
            return own, axis.label, Axis(0).label, list(axis), rights, Pet.BIRD.legs, Day.FIRST.year, Shape.SQUARE[1]

        @kinetic.run(accelerator="cpu")
        def of_job(planet, axis):
            class Level(enum.Enum):
                LOW = 1, "low"
                def __init__(self, number, text):
                    self.text = text

            return told(planet, axis), planet, Level.LOW

        of_the_job, planet, level = of_job(Planet.TERRA, Axis.Y)
        is_same = json.dumps(of_the_job) == json.dumps(told(Planet.TERRA, Axis.Y))
        print(json.dumps([is_same, planet is Planet.EARTH, level.text, type(level)((1, "low")) is level]))
        """
    )

    assert last_json(out) == [True, True, "low", True]


def test_functions_of_a_script_may_take_dicts_whose_types_extend_others(project) -> None:
    out = project.out(
        """
        from typing import TypedDict
        import kinetic

        class Model(TypedDict, total=False):
            layers: int

        class Training(Model):
            rate: float

        Point = TypedDict("Point", {"x": int, "in": int})

        @kinetic.run(accelerator="cpu")
        def train(given: Training, point: Point):
            return given["rate"], sorted(Training.__optional_keys__), list(Point.__annotations__), Training(rate=2)

        print(train({"rate": 0.1, "layers": 2}, {"x": 1, "in": 2}))
        """
    )

    assert out.splitlines()[-1] == "(0.1, ['layers'], ['x', 'in'], {'rate': 2})"


def test_what_only_its_identity_tells_apart_is_the_same_in_the_job_as_that_a_field_has_no_default(project) -> None:
    project.write(
        "marks.py",
        """
        class Mark:
            pass

        class Action:  # as of Lark's tables
            def __init__(self, name):
                self.name = name

        NOTHING, SHIFT, changed = Mark(), Action("shift"), Action("here")
        current = None
        """,
    )
    out = project.out(
        """
        import dataclasses, json
        from dataclasses import dataclass, field, fields
        import kinetic
        import marks

        @dataclass
        class Config:
            name: str
            sizes: list = field(default_factory=list)

        marks.current = marks.Mark()  # the job's module has none
        marks.changed.name = "there"

        @kinetic.run(accelerator="cpu")
        def same(given, current, action, changed):
            @dataclass
            class More(Config):
                rate: float = 0.1

            said = [[each.default is dataclasses.MISSING for each in fields(kind)] for kind in (Config, More)]
            said.append([given is marks.NOTHING, type(current) is marks.Mark, marks.current])
            said.append([action is marks.SHIFT, changed.name, marks.changed.name])
            return said, More("a"), given

        said, made, given = same(marks.NOTHING, marks.current, marks.SHIFT, marks.changed)
        here = [each.default is dataclasses.MISSING for each in fields(made)]
        print(json.dumps([said, made.sizes, here, given is marks.NOTHING]))
        """
    )

    said = [[True, True], [True, True, False], [True, True, None], [True, "there", "here"]]
    assert last_json(out) == [said, [], [True, True, False], True]


@pytest.mark.parametrize("variable", ["SERVICE_TOKEN", "AZURE_STORAGE_CONNECTION_STRING", "FERNET_KEY"])
def test_a_pickle_in_a_file_is_opened_with_the_classes_and_functions_of_the_script_that_it_names(
    project, home, monkeypatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "hunter2-and-more-of-it")
    project.write(
        "train.py",
        """
        import json
        import os
        import pickle as saved
        import kinetic

        (kept,) = [value for value in os.environ.values() if value.startswith("hunter2")]
        values = bytes(1_000_000)

        class Net:
            def __init__(self, size):
                self.size = size

            def grow(self):
                return more(self.size)

        def more(size):
            return size + 1

        def signed():
            return kept

        def large():
            return values

        class Reader:
            @staticmethod
            def read(path):
                with open(path, "rb") as file:
                    return saved.load(file)

        @kinetic.run(accelerator="cpu")
        def evaluate():
            net, function = Reader.read("model.pkl")
            missing = []
            for name in ("signed", "large", "other"):
                try:
                    saved.loads(f"c__main__\\n{name}\\n.".encode())
                except AttributeError:
                    missing.append(name)
            return net, net.grow(), function(3), missing

        @kinetic.run(accelerator="cpu")
        def plain():  # opens no pickle
            import __main__

            return json.loads("[1]") and hasattr(__main__, "Net")

        if __name__ == "__main__":
            with open("model.pkl", "wb") as file:
                saved.dump((Net(3), more), file)
            net, grown, called, missing = evaluate()
            print(type(net) is Net, grown, called, missing, plain())
        """,
    )

    done = project.run("train.py")

    assert done.stdout == "True 4 4 ['signed', 'large', 'other'] False\n", done.stderr
    kept = [path.read_bytes() for path in (home / "store").rglob("*") if path.is_file()]
    assert kept
    assert not any(b"hunter2-and-more-of-it" in each for each in kept)


def test_a_pickle_is_opened_by_a_method_of_an_argument_or_through_what_a_decorator_of_the_script_made(project) -> None:
    project.write(
        "train.py",
        """
        import functools
        import pickle
        import kinetic

        class Net:
            pass

        def read():
            with open("model.pkl", "rb") as file:
                return type(pickle.load(file)).__name__

        def again(function):
            @functools.wraps(function)
            def called():
                return function()

            return called

        read_again = again(functools.partial(read))

        class Base:
            def restore(self):
                with open("model.pkl", "rb") as file:
                    return type(pickle.load(file)).__name__

        class Trainer(Base):
            @kinetic.run(accelerator="cpu")
            def train(self, number=0):
                return self.restore(), number

        trainer = Trainer()

        @kinetic.run(accelerator="cpu")
        def evaluate():
            return trainer.restore()

        @kinetic.run(accelerator="cpu")
        def through_a_decorator():
            return read_again()

        @kinetic.run(accelerator="cpu")
        def opened(base):
            return base.restore()

        if __name__ == "__main__":
            with open("model.pkl", "wb") as file:
                pickle.dump(Net(), file)
            print(evaluate(), through_a_decorator(), Trainer().train(), Trainer().train.run_async_map([1]).results())
            print(opened(Base()), opened.run_async_map([Base(), Base()]).results())
        """,
    )

    done = project.run("train.py")

    assert done.stdout == "Net Net ('Net', 0) [('Net', 1)]\nNet ['Net', 'Net']\n", done.stderr


@pytest.mark.skipif(sys.version_info < (3, 15), reason="lazy imports came with Python 3.15")
@pytest.mark.parametrize("everything", [False, True])
def test_what_a_script_imports_lazily_is_imported_in_the_job_and_not_here(project, monkeypatch, everything) -> None:
    if everything:
        monkeypatch.setenv("PYTHON_LAZY_IMPORTS", "all")
    project.write("loading.py", "import pprint\n\ndef load(x):\n    return pprint.pformat([x])\n")
    text = """
        lazy import colorsys
        lazy import xml.dom.minidom
        lazy import xml.etree.ElementTree as tree
        lazy import of_the_job
        lazy from decimal import Decimal as Exact, getcontext
        lazy from loading import load
        import json, sys
        import kinetic

        def rounded(x):
            return str(Exact(x)), getcontext().prec

        @kinetic.run(accelerator="cpu")
        def train(x):
            names = colorsys.__name__, xml.dom.minidom.__name__, tree.__name__
            return *names, *rounded(x), load(x)

        @kinetic.run(accelerator="cpu")
        def missing():
            return of_the_job.load()

        print(json.dumps(train(2)))
        assert not {"colorsys", "decimal", "xml.dom.minidom", "xml.etree.ElementTree"} & {*sys.modules}
        try:
            missing()
        except ModuleNotFoundError as error:
            print(error.name)
        """

    out = project.out(text.replace("lazy ", "" if everything else "lazy ")).splitlines()

    assert last_json(out[0]) == ["colorsys", "xml.dom.minidom", "xml.etree.ElementTree", "2", 28, "[2]"]
    assert out[-1] == "of_the_job"  # below the log of that job


def test_a_sentinel_of_the_script_is_the_same_one_in_the_job_and_in_what_comes_back(project) -> None:
    out = project.out(
        """
        import json
        import kinetic
        import typing_extensions

        sentinel = getattr(typing_extensions, "sentinel", None) or typing_extensions.Sentinel
        UNSET = sentinel("UNSET")

        class Options:
            DEFAULT = sentinel("Options.DEFAULT", repr="<default>")

        @kinetic.run(accelerator="cpu")
        def train(rate, options=UNSET):
            return rate is UNSET, options is UNSET, rate is Options.DEFAULT, repr(Options.DEFAULT), rate

        first, second = train(UNSET), train(Options.DEFAULT, 1)
        print(json.dumps([first[:4], second[:4], first[4] is UNSET, second[4] is Options.DEFAULT]))
        """
    )

    assert last_json(out) == [
        [True, True, False, "<default>"],
        [False, False, True, "<default>"],
        True,
        True,
    ]


def test_annotations_that_nothing_has_asked_for_are_there_in_the_job(project) -> None:
    out = project.out(
        """
        import json, typing
        import kinetic

        class Movie(typing.TypedDict, total=False):
            name: str

        class Point(typing.NamedTuple):
            x: int
            movie: Movie

        class Node:
            Kind = int
            child: "Node"
            kind: Kind

            def beside(self, other: "Node") -> Movie: ...

        def looked_at():
            found = [typing.get_type_hints(each) for each in (Movie, Point, Node, Node.beside)]
            return [{name: repr(hint) for name, hint in each.items()} for each in found]

        @kinetic.run(accelerator="cpu")
        def train():
            return looked_at()

        there = train()
        print(json.dumps([there, there == looked_at()]))
        """
    )

    (movie, *_, beside), are_equal = last_json(out)
    assert are_equal
    assert movie == {"name": "<class 'str'>"}
    assert beside == {"other": "<class '__main__.Node'>", "return": "<class '__main__.Movie'>"}


@pytest.mark.skipif(sys.version_info < (3, 14), reason="older Pythons evaluate annotations at once")
def test_annotations_may_name_what_only_type_checkers_import(project) -> None:
    text = """
        import annotationlib, dataclasses, functools, json, sys, typing
        import kinetic

        if typing.TYPE_CHECKING:
            from jax import Array

        @dataclasses.dataclass
        class Batch:
            values: Array
            size: int = 1

        class Pair(typing.NamedTuple):
            first: Array

        class Net:
            Kind = int
            weights: Array
            kind: Kind
            parts: list[Batch]

            def forward(self, x: Array) -> Array:
                return x + 1

        def traced(function):
            @functools.wraps(function)
            def wrapper(*values: Array) -> Array:
                return function(*values)
            return wrapper

        def made():
            Size = int
            def inner(x: Array, size: Size) -> Array:
                return x
            return inner

        helper, inner = traced(lambda x: x), made()

        @kinetic.run(accelerator="cpu")
        def train(x: Array, *more: Array) -> Array:
            text, kept = annotationlib.Format.STRING, annotationlib.Format.FORWARDREF
            found = [annotationlib.get_annotations(each, format=text) for each in (Net, Net.forward, inner)]
            parts = annotationlib.get_annotations(Net, format=kept)["parts"]
            inside = annotationlib.get_annotations(inner, format=kept)["size"]
            value = Net().forward(helper(Pair(inner(x, 1)).first))
            return found, parts == list[Batch], inside is int, Batch(value)

        if __name__ == "__main__":
            *found, batch = train(1)
            print(json.dumps([*found, batch == Batch(2)]))
            try:
                train()
            except kinetic.errors.CallableError as error:
                print(json.dumps(error.why))
        """

    out = project.out(text).splitlines()

    assert json.loads(out[0]) == [
        [
            {"weights": "Array", "kind": "Kind", "parts": "list[Batch]"},
            {"x": "Array", "return": "Array"},
            {"x": "Array", "size": "Size", "return": "Array"},
        ],
        True,
        True,
        True,
    ]
    assert last_json(out[-1]) == "its signature is train(x: Array, *more: Array) -> Array"
