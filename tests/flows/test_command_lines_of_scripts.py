"""A function finds the words of its script's command line in ``sys.argv``, and what absl, gin and Hydra made of them.

All are where captured values are, and so is what Django was set up with.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json

WORD = "--hook=https://hooks.test/T0-s3cr3t-c0ffee"
THEIRS = """
    import argparse
    import functools
    import os
    import sys
    import time
    import kinetic

    def with_options(function):  # as hydra.main and click.command do it
        @functools.wraps(function)
        def parsed():
            parser = argparse.ArgumentParser()
            parser.add_argument("--rate", type=float, default=0.1)
            return function(parser.parse_args().rate)

        return parsed

    @kinetic.run(accelerator="cpu")
    @with_options
    def train(rate):
        return rate

    @kinetic.run(accelerator="cpu")
    def words(*_):
        return sys.argv[1:], [name for name in os.environ if "WORDS" in name]

    @kinetic.run(accelerator="cpu")
    def submits():
        return words()

    @kinetic.run(accelerator="cpu")
    def dies_once():
        if os.environ["KINETIC_ATTEMPT"] == "0":
            os.kill(os.getpid(), 9)
        return sys.argv[1:]

    @kinetic.run(accelerator="cpu")
    def stay(go, begun, *_):
        open(begun, "w").close()
        while not os.path.exists(go):
            time.sleep(0.01)
        return len(sys.argv)
"""


@pytest.fixture
def project(project: Any) -> Any:
    project.write("theirs.py", THEIRS)
    return project


def holding(folder: Path, word: str) -> list[Path]:
    """Return the files that hold a word, as it is or within a pickle in base64, wherever it begins there."""
    inside = [base64.b64encode(b" " * number + word.encode())[4:-4] for number in range(3)]
    forms = [word.encode(), *inside]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(form in path.read_bytes() for form in forms)]


def test_a_function_that_parses_the_command_line_finds_the_scripts(project: Any) -> None:
    in_a_batch = "import theirs; print(*theirs.train.run_async_map([()]).results(timeout=60))"

    assert project.out(f"{project.root.joinpath('theirs.py').read_text()}\nprint(train())", "--rate", "0.5") == "0.5\n"
    assert project.out(in_a_batch, "--rate=0.25") == "0.25\n"
    assert project.out("import theirs; print(theirs.train())") == "0.1\n"


@pytest.mark.parametrize("runner", ["cProfile -o profile", "trace --count --coverdir counts --ignore-dir /"])
def test_a_script_that_is_profiled_or_traced_gives_its_jobs_the_same_words(project: Any, runner: str) -> None:
    project.write("script.py", "import theirs; print(theirs.train(), theirs.words()[0])")

    done = project.execute(sys.executable, "-m", *runner.split(), "script.py", "--rate", "0.5")

    assert done.stdout.startswith("0.5 ['--rate', '0.5']\n"), done.stderr


def test_every_job_of_a_script_has_the_words_and_no_variable_of_them(project: Any) -> None:
    odd = ["", "two words", "ünïcödé", '"quoted" $HOME\n', *(["\udcff"] if sys.platform == "linux" else [])]
    script = """
        import json, kinetic, theirs
        jobs = [theirs.words.run_async(), theirs.submits.run_async()]
        follows = theirs.words.run_async(jobs[0])
        found = [job.result() for job in (*jobs, follows)]
        print(json.dumps([found, theirs.dies_once.with_options(retries=1)()]))
    """

    found, again = last_json(project.out(script, *odd))

    assert found == [[odd, []]] * 3
    assert again == odd


def test_words_of_the_command_line_are_only_where_captured_values_are_and_as_long(
    project: Any, home: Path, wait_until: Any
) -> None:
    go, begun = project.root.parent / "go", [project.root.parent / f"begun-{number}" for number in range(2)]
    project.write(
        "script.py",
        f"""
        import kinetic, sys, theirs
        from absl import flags
        flags.DEFINE_string("hook", "", "Where to report.")
        flags.FLAGS(sys.argv)
        FLAGS = flags.FLAGS

        @kinetic.run(accelerator="cpu")
        def told():
            return len(FLAGS.hook)

        print(told())
        job = theirs.stay.run_async({str(go)!r}, {str(begun[0])!r})
        batch = theirs.stay.run_async_map([({str(go)!r}, {str(begun[1])!r})])
        print(job.result(cleanup=False), *batch.results())
        """,
    )
    client = project.start("script.py", WORD)
    wait_until(lambda: all(path.exists() for path in begun), "both jobs", 30)

    kept = holding(home, WORD)
    shown = [
        project.kinetic(*words)
        for words in (["jobs", "list", "--json"], ["jobs", "show", "@last", "--json"], ["jobs", "logs", "@last"])
    ]
    go.touch()
    out, err = client.communicate(timeout=60)

    assert out == f"{len(WORD) - len('--hook=')}\n2 2\n", err
    assert WORD not in err
    assert not [each for each in shown if each.returncode or WORD in each.stdout + each.stderr]
    assert {path.relative_to(home).parts[0] for path in kept} == {"run"}
    assert {(path.name, path.stat().st_mode & 0o777) for path in kept if path.exists()} <= {("queue.db", 0o600)}
    assert len(kept) >= 2
    assert holding(home, WORD) == []


def test_words_too_long_for_a_variable_stay_here_and_a_line_says_so(project: Any) -> None:
    project.write("script.py", "import theirs; print(theirs.words(), theirs.words())")

    done = project.run("script.py", *[f"file-{number:06}.txt" for number in range(5000)])

    assert done.stdout == "([], []) ([], [])\n"
    assert done.stderr.count("command line has more than 64.0 kB and stays here") == 1, done.stderr


def test_a_program_that_is_installed_in_the_project_has_words_of_its_own(project: Any) -> None:
    program = ".venv/lib/python3/site-packages/runner/__main__.py"
    project.write(program, "import sys; sys.path[0] = '.'; import theirs; print(theirs.words())")

    done = project.run(program, "-k", "test_one")

    assert done.stdout == "([], [])\n", done.stderr


def test_flags_of_absl_have_in_jobs_the_values_that_the_script_gave_them(project: Any) -> None:
    project.write(
        "model.py",
        """
        from absl import flags
        import kinetic

        LAYERS = flags.DEFINE_integer("layers", 3, "Of the model.")
        flags.DEFINE_list("names", [], "Of those layers.")

        @kinetic.run(accelerator="cpu")
        def describe():
            import late
            return [LAYERS.value, flags.FLAGS.names, flags.FLAGS["late"].value, LAYERS.present]
        """,
    )
    project.write("late.py", "from absl import flags; flags.DEFINE_float('late', 0.0, 'Read in the job.')")
    project.write(
        "train.py",
        """
        import enum, json
        from absl import app, flags
        import kinetic, late, model

        class Optimizer(enum.Enum):
            ADAM = 1
            SGD = 2

        FLAGS = flags.FLAGS
        RATE = flags.DEFINE_float("rate", 0.1, "Of learning.", short_name="r", lower_bound=0)
        flags.DEFINE_enum_class("optimizer", Optimizer.ADAM, Optimizer, "Which.")
        flags.DEFINE_bool("shuffle", True, "Whether.")
        flags.DEFINE_multi_string("tag", [], "As many as you like.")
        flags.mark_flag_as_required("tag")

        @kinetic.run(accelerator="cpu")
        def train(steps):
            is_same = FLAGS.optimizer is Optimizer.SGD
            return [steps, FLAGS.rate, RATE.value, FLAGS.r, is_same, FLAGS.shuffle, FLAGS.tag, *model.describe.local()]

        def main(words):
            FLAGS.layers = 7
            here = [train.local(2), model.describe.local()]
            assert here == [train(2), model.describe()] == [*train.run_async_map([2]).results(), model.describe()]
            FLAGS.rate = 0.25
            print(json.dumps([here, train(3), words[1:]]))

        if __name__ == "__main__":
            app.run(main)
        """,
    )
    words = ["-r", "0.5", "--optimizer=sgd", "--noshuffle", "--tag=a", "--tag=b", "--names=x,y", "--late=1.5", "more"]

    done = project.run("train.py", *words)

    assert done.returncode == 0, done.stderr
    described = [7, ["x", "y"], 1.5, False]
    (trained, described_here), again, others = last_json(done.stdout)
    assert trained == [2, 0.5, 0.5, 0.5, True, False, ["a", "b"], *described]
    assert described_here == described
    assert again == [3, 0.25, 0.25, 0.25, True, False, ["a", "b"], *described]
    assert others == ["more"]


def test_records_of_absl_look_in_the_log_of_a_job_as_they_do_in_the_script(project: Any) -> None:
    told = """
        import logging as python_logging
        from absl import app, flags, logging
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            from absl import logging
            logging.info("loss 0.5")
            logging.debug("a detail")
            python_logging.info("of another library")

        def main(words):
            train.local()
            print("in a job:", flush=True)
            train()

        if __name__ == "__main__":
            app.run(main)
    """
    own = "import kinetic\nfrom absl import logging\nlogging.set_verbosity(logging.INFO)\n"
    own += "@kinetic.run(accelerator='cpu')\ndef train():\n    from absl import logging\n    logging.info('loss 0.5')\n"
    project.write("train.py", told)
    project.write("own.py", own + "train.local(); train()")

    done = project.run("train.py", "--verbosity=0")
    without = project.run("own.py")

    assert done.returncode == without.returncode == 0, done.stderr + without.stderr
    for said in (done.stderr, done.stdout):
        (loss, other) = [line for line in said.splitlines() if line.startswith("I")]
        assert loss.endswith("train.py:9] loss 0.5")
        assert other.endswith("train.py:11] of another library")
    assert "a detail" not in done.stdout
    assert without.stdout == "INFO:absl:loss 0.5\n"


def test_bindings_of_gin_hold_in_jobs(project: Any) -> None:
    project.write(
        "nets.py",
        """
        import gin

        @gin.configurable
        class Net:
            def __init__(self, width=1, act=None):
                self.width, self.act = width, act

        @gin.register
        def scale(x, by=1):
            return x * by
        """,
    )
    bindings = """
        RATE = 0.25
        train.rate = %RATE
        train.net = @nets.Net()
        nets.Net.width = 7
        nets.Net.act = @nets.scale
        nets.scale.by = 4
        layers.many = 4
        wide/layers.many = 8
    """
    project.write(
        "train.py",
        f"""
        import sys
        import gin, kinetic, nets

        @gin.configurable
        def layers(many=1):
            return many

        @kinetic.run(accelerator="cpu")
        @gin.configurable
        def train(rate=gin.REQUIRED, net=None):
            with gin.config_scope("wide"):
                wide = layers()
            return rate, net.width, net.act(2), nets.Net().width, layers(), wide

        gin.parse_config({bindings!r})
        assert train.local() == train(), (train.local(), train())
        print(*train())
        """,
    )

    done = project.run("train.py")

    assert done.stdout == "0.25 7 8 7 4 8\n", done.stderr


def test_configs_of_hydra_find_in_jobs_what_they_refer_to(project: Any) -> None:
    project.write(
        "resolvers.py",
        """
        from omegaconf import OmegaConf
        OmegaConf.register_new_resolver("thrice", lambda x: 3 * x)
        """,
    )
    project.write(
        "train.py",
        """
        import hydra, kinetic, resolvers
        from omegaconf import OmegaConf

        FACTOR = 2
        OmegaConf.register_new_resolver("twice", lambda x: FACTOR * x)
        OmegaConf.register_new_resolver("of_python", eval)

        @kinetic.run(accelerator="cpu")
        def train(config):
            import resolvers  # registers a resolver that the script has, too
            from hydra.core.hydra_config import HydraConfig
            return [*config.values(), HydraConfig.get().runtime.output_dir]

        @kinetic.run(accelerator="cpu")
        def submits(config):
            return train.run_async(config).result()

        @hydra.main(version_base=None, config_path=None)
        def main(config):
            names = "job:hydra:job.name", "six:twice:3", "nine:thrice:3", "two:of_python:'1+1'"
            asked = {key: "${%s}" % rest for key, rest in (name.split(":", 1) for name in names)}
            config = OmegaConf.create({**asked, "lr": config.lr})
            here = train.local(config)
            assert here[:-1] == ["train", 6, 9, 2, 0.5], here
            assert [train(config), submits(config), *train.run_async_map([(config,)]).results()] == [here] * 3
            print("equal")

        main()
        """,
    )

    done = project.run("train.py", "+lr=0.5")

    assert done.stdout.splitlines()[-1:] == ["equal"], done.stderr


def test_models_of_django_are_there_in_jobs_of_a_program_that_has_set_django_up(project: Any) -> None:
    project.write("site_settings.py", "INSTALLED_APPS = ['django.contrib.contenttypes', 'shop']")
    project.write("shop/__init__.py", "")
    project.write(
        "shop/models.py",
        """
        from django.db import models

        class Item(models.Model):
            name = models.CharField(max_length=20)
        """,
    )
    project.write(
        "tasks.py",
        """
        import kinetic
        from shop.models import Item

        @kinetic.run(accelerator="cpu")
        def bought(item):
            return Item(name=item.name + "!")

        @kinetic.run(accelerator="cpu")
        def submits(item):
            return bought.run_async(item).result()
        """,
    )
    project.write(
        "own.py",
        """
        import os, django, kinetic

        os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
        django.setup()

        @kinetic.run(accelerator="cpu")
        def labels():
            from django.apps import apps
            return [model._meta.label for model in apps.get_models()]
        """,
    )
    project.write(
        "manage.py",
        """
        import os, django

        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
        django.setup()
        from own import labels
        from shop.models import Item
        from tasks import bought, submits

        item = Item(name="tea")
        values = [bought(item), submits(item), *bought.run_async_map([item]).results()]
        print([value.name for value in values], labels())
        """,
    )

    done = project.run("manage.py")

    labels = "['contenttypes.ContentType', 'shop.Item']"
    assert done.stdout.splitlines()[-1:] == [f"['tea!', 'tea!', 'tea!'] {labels}"], done.stderr
