"""What a script has set in Python, in its loggers and in libraries holds in its jobs."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest
from flows.conftest import last_json


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_what_a_script_told_libraries_about_their_numbers_holds_in_the_job(project) -> None:
    project.write(
        "torch.py",  # as far as its settings are concerned
        """
        import sys, types

        class Module(types.ModuleType):
            benchmark = deterministic = False

        backends = types.ModuleType("torch.backends")
        backends.cudnn = sys.modules["torch.backends.cudnn"] = Module("torch.backends.cudnn")
        strict = [(False, False)]
        use_deterministic_algorithms = lambda mode, *, warn_only=False: strict.append((mode, warn_only))
        are_deterministic_algorithms_enabled = lambda: strict[-1][0]
        is_deterministic_algorithms_warn_only_enabled = lambda: strict[-1][1]
        float32, float64 = "torch.float32", "torch.float64"
        kept = [float32]
        set_default_dtype = kept.append
        get_float32_matmul_precision = lambda: "highest"
        def get_default_dtype():
            return kept[-1]
        """,
    )
    project.write(
        "hydra.py",  # as far as what ``hydra.main`` does when it decorates is concerned
        """
        import types

        class version:
            kept = ["1.1"]
            setbase = kept.append
            def getbase():
                return types.SimpleNamespace(public=version.kept[-1])
        """,
    )
    out = project.out(
        """
        import json
        import hydra
        import jax
        import jax.numpy as jnp
        import torch
        import kinetic

        hydra.version.setbase("1.3")
        jax.config.update("jax_enable_x64", True)
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = True

        @kinetic.run(accelerator="cpu")
        def numbers(third):
            base = hydra.version.getbase().public
            torch.backends.cudnn.deterministic = True
            switches = [torch.backends.cudnn.benchmark, torch.is_deterministic_algorithms_warn_only_enabled()]
            return [str(third.dtype), str(jnp.arange(2).dtype), torch.get_default_dtype(), base, *switches]

        print(json.dumps([numbers(jnp.float64(1) / 3), numbers.__wrapped__(jnp.float64(1) / 3)]))
        """
    )

    in_the_job, plain = last_json(out)
    assert in_the_job == plain == ["float64", "int64", "torch.float64", "1.3", True, True]


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_what_a_script_has_told_jax_to_look_for_is_looked_for_in_the_job(project) -> None:
    out = project.out(
        """
        import json
        import jax
        import kinetic

        wanted = ["check_tracer_leaks", "debug_key_reuse", "enable_checks", "enable_custom_prng"]
        for name in wanted:
            jax.config.update(f"jax_{name}", True)
        jax.config.update("jax_traceback_filtering", "off")
        jax.config.update("jax_legacy_prng_key", "error")

        @kinetic.run(accelerator="cpu")
        def told():
            leaked = []
            try:
                jax.jit(leaked.append)(1.0)
            except Exception as error:
                leaked = str(error)[:12]
            texts = [jax.config.jax_traceback_filtering, jax.config.jax_legacy_prng_key]
            return leaked, [getattr(jax.config, f"jax_{name}") for name in wanted], texts

        print(json.dumps([told(), told.__wrapped__()]))
        """
    )

    in_the_job, plain = last_json(out)
    assert in_the_job == plain == ["Leaked trace", [True] * 4, ["off", "error"]]


def test_what_a_script_has_set_in_python_and_numpy_holds_in_the_job(project) -> None:
    out = project.out(
        """
        import decimal, json, sys
        import numpy as np
        import kinetic

        sys.setrecursionlimit(5000)
        decimal.getcontext().prec = 50
        np.seterr(all="raise")

        @kinetic.run(accelerator="cpu")
        def compute():
            def deep(number):
                return number and deep(number - 1)
            try:
                np.float64(1) / np.float64(0)
            except FloatingPointError:
                raised = True
            return [deep(3000), str(decimal.Decimal(1) / 3), raised]

        print(json.dumps([compute(), compute.local()]))
        """
    )

    in_the_job, plain = last_json(out)
    assert in_the_job == plain == [0, "0." + "3" * 50, True]


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is needed, and it is not installed here")
def test_what_a_script_told_scikit_learn_holds_in_the_job(project) -> None:
    out = project.out(
        """
        import json
        import sklearn
        import kinetic

        sklearn.set_config(transform_output="pandas", enable_metadata_routing=True)

        @kinetic.run(accelerator="cpu")
        def told():
            return sklearn.get_config()

        print(json.dumps([told(), told.local()]))
        """
    )

    in_the_job, plain = last_json(out)
    assert in_the_job == plain
    assert in_the_job["transform_output"] == "pandas"


@pytest.mark.skipif(find_spec("torch") is None, reason="real PyTorch is needed, and it is not installed here")
def test_gradients_that_a_script_has_switched_off_in_torch_are_off_in_the_job(project) -> None:
    out = project.out(
        """
        import json
        import torch
        import kinetic

        torch.set_grad_enabled(False)
        model = torch.nn.Linear(1, 1)

        @kinetic.run(accelerator="cpu")
        def evaluated():
            return model(torch.ones(1)).numpy().shape, torch.is_anomaly_enabled()

        shape, is_checked = evaluated()
        torch.autograd.set_detect_anomaly(True)
        print(json.dumps([shape, is_checked, evaluated()[1]]))
        """,
        timeout=180,
    )

    assert last_json(out) == [[1], False, True]


@pytest.mark.skipif(find_spec("torch") is None, reason="real PyTorch is needed, and it is not installed here")
def test_what_torch_may_only_warn_of_and_how_it_prints_holds_in_the_job(project) -> None:
    out = project.out(
        """
        import json
        import torch
        import kinetic

        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_printoptions(precision=2, threshold=float("inf"), sci_mode=False)
        torch.backends.mkldnn.enabled = False

        @kinetic.run(accelerator="cpu")
        def found():
            shown, is_on = str(torch.tensor([1 / 3, 2000.5])), torch.backends.mkldnn.enabled
            return shown, torch.get_deterministic_debug_mode(), is_on

        print(json.dumps([found(), found.__wrapped__()]))
        """,
        timeout=180,
    )

    in_the_job, plain = last_json(out)
    assert in_the_job == plain == ["tensor([   0.33, 2000.50])", 1, False]


def test_log_records_are_shown_in_the_job_as_the_script_shows_them_and_once(project) -> None:
    project.write(
        "theirs.py",
        """
        import logging, sys, kinetic
        logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))

        @kinetic.run(accelerator="cpu")
        def work():
            logging.warning("of a module")
        """,
    )
    script = """
    import logging, kinetic
    log = logging.getLogger("mine")

    @kinetic.run(accelerator="cpu")
    def work(number):
        log.info("heard %d", number)
        log.debug("not shown")

    def logs(job):
        job.wait()
        return job.logs()

    print([logs(work.run_async(1))])
    logging.basicConfig(level=logging.INFO, format="{levelname}|{message}", style="{")
    print([logs(work.run_async(2)), *map(logs, work.run_async_map([3]).as_completed())])
    import theirs
    print([logs(theirs.work.run_async())])
    """

    assert project.out(script).splitlines() == ["['']", str(["INFO|heard 2\n", "INFO|heard 3\n"]), "['of a module\\n']"]


def test_records_have_in_the_job_the_time_and_the_level_that_rich_shows_beside_them(project) -> None:
    out = project.out(
        """
        import logging
        from rich.logging import RichHandler  # Keras brings it along
        import kinetic

        @kinetic.run(accelerator="cpu")
        def work():
            logging.warning("slow")

        def log_with(handler):
            logging.basicConfig(format="%(message)s", datefmt="[%Y]", handlers=[handler], force=True)
            job = work.run_async()
            job.wait()
            return job.logs()

        print([log_with(RichHandler()), log_with(RichHandler(show_time=False))])
        """
    )

    assert re.sub(r"\d{4}", "year", out) == str(["[year] WARNING  slow\n", "WARNING  slow\n"]) + "\n"


def test_records_of_the_scripts_own_loggers_are_shown_in_the_job_and_once(project) -> None:
    project.write(
        "theirs.py",
        """
        import logging, sys
        log = logging.getLogger("theirs")
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler(sys.stdout))
        """,
    )
    script = """
    import json, logging, sys
    import kinetic, theirs

    def begin(name, *files):
        log = logging.getLogger(name)
        if not log.handlers:
            log.setLevel(logging.DEBUG)
            log.propagate = False
            for handler in (logging.StreamHandler(), *map(logging.FileHandler, files)):
                handler.setFormatter(logging.Formatter(f"{name} %(message)s"))
                log.addHandler(handler)
        return log

    log, guarded = begin(__name__), begin("guarded", "train.log")
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("library").setLevel(logging.ERROR)

    @kinetic.run(accelerator="cpu")
    def train():
        log.debug("shown")
        begin("guarded", "train.log").info("in both")
        logging.getLogger("library").warning("silenced")
        logging.getLogger("other").debug("not shown")
        from theirs import log as later
        later.info("a module's")
        return open("train.log").read()

    job = train.run_async()
    print(json.dumps([job.result(cleanup=False), job.logs()]))
    """

    written, shown = last_json(project.out(script))

    assert written == "guarded in both\n"
    assert shown.splitlines()[:4] == ["__main__ shown", "guarded in both", "a module's", "INFO:theirs:a module's"]


@pytest.mark.skipif(find_spec("optuna") is None, reason="Optuna is needed, and it is not installed here")
def test_a_library_that_a_script_has_silenced_is_silent_in_the_job(project) -> None:
    script = """
    import json
    import optuna
    import kinetic

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    @kinetic.run(accelerator="cpu")
    def search():
        optuna.create_study()

    @kinetic.run(accelerator="cpu")
    def imports_it_later():
        from optuna import create_study, logging
        create_study()
        return logging.get_verbosity()

    def end(job):
        return [job.result(cleanup=False), job.logs()]

    print(json.dumps([end(search.run_async()), end(imports_it_later.run_async())]))
    """

    assert last_json(project.out(script, timeout=120)) == [[None, ""], [40, ""]]


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is needed, and it is not installed here")
def test_what_a_script_told_libraries_about_what_they_show_holds_in_the_job(project) -> None:
    project.write(
        "matplotlib.py",  # as far as its parameters are concerned
        """
        class Cycler:
            def __str__(self):
                return "cycler('color', ['red'])"

        rcParams = {"axes.prop_cycle": "usual", "figure.figsize": [6.4, 4.8], "lines.linewidth": 1.5, "backend": "agg"}
        rcParamsOrig = dict(rcParams)
        """,
    )
    script = """
    import json
    import matplotlib
    import numpy as np
    import pandas as pd
    import kinetic

    np.set_printoptions(precision=2, threshold=np.inf, floatmode="fixed", nanstr="none", legacy="1.25")
    pd.set_option("display.max_columns", None)
    pd.options.display.float_format = "{:.3f}".format  # a function, which stays
    matplotlib.rcParams |= {"axes.prop_cycle": matplotlib.Cycler(), "figure.figsize": (3, 2), "backend": "tkagg"}

    @kinetic.run(accelerator="cpu")
    def shown():
        numbers = f"{np.arange(2000) / 3}"
        alone = f"{np.array([0.5, np.nan])} {np.float64(0.5)!r}"
        return [alone, numbers[:16], len(numbers), pd.options.display.max_columns, pd.options.display.width]

    @kinetic.run(accelerator="cpu")
    def drawn():
        import matplotlib as imported_later
        return imported_later.rcParams

    print(json.dumps([shown(), shown.local(), drawn()]))
    """

    in_the_job, plain, drawn = last_json(project.out(script))

    assert in_the_job == plain
    assert in_the_job[0] == "[0.50 none] 0.5"
    assert in_the_job[3:] == [None, 80]
    assert drawn == {
        "axes.prop_cycle": "cycler('color', ['red'])",
        "figure.figsize": [3, 2],
        "lines.linewidth": 1.5,
        "backend": "agg",
    }
