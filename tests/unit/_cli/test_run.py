"""`kinetic run` up to the submission: which file, which function, which options, and what is said of mistakes.

Jobs themselves run in tests/flows/test_kinetic_run.py.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from kinetic._cli import run, target_function
from kinetic._remote.callable import RemoteCallable
from kinetic.errors import KineticError, OptionError

TRAIN = """
    import sys
    import kinetic

    RATE = 0.1

    @kinetic.run(accelerator="gpu-l4", capture_env_vars=["TOKEN"], spot=True)
    def train(lr: float, steps: int = 10):
        '''Train a model.'''

    def plain(a):
        return a

    class Model:
        @staticmethod
        def fit(a):
            return a

    ARGV, NAME = list(sys.argv), __name__
    if __name__ == "__main__":
        raise RuntimeError("the script itself ran")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, home) -> Path:
    """Give each test a current folder of its own, and take back what importing its files did to this process."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    main = vars(sys.modules["__main__"])
    if "__file__" in main:
        monkeypatch.setitem(main, "__file__", main["__file__"])
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def write(folder):
    """Return a function that writes a file of the project."""
    from textwrap import dedent

    def put(name: str, text: str) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return put


def refusal(written: str) -> KineticError:
    with pytest.raises(KineticError) as raised:
        target_function.find_function(written, ())
    return raised.value


# ----------------------------------------------------------------------------------------------------------- the file


def test_the_file_is_imported_under_its_own_name_and_its_script_part_does_not_run(write) -> None:
    write("training.py", TRAIN)

    found = target_function.find_function("training.py::plain", ("1", "--x"))

    module = sys.modules["training"]
    assert found.function is module.plain
    assert module.NAME == "training"
    assert module.ARGV == ["training.py", "1", "--x"]


def test_the_file_s_folder_comes_first_on_the_search_path(write, folder) -> None:
    write("tools/training.py", "import beside\ndef f(): return beside.WORD\n")
    write("tools/beside.py", "WORD = 'there'\n")

    found = target_function.find_function("tools/training.py::f", ())

    assert found.function() == "there"
    assert sys.path[0] == str(folder / "tools")


def test_a_file_of_a_package_has_the_package_in_its_name_and_relative_imports_work(write, folder) -> None:
    write("src/shop/__init__.py", "")
    write("src/shop/models/__init__.py", "")
    write("src/shop/models/train.py", "from . import base\nfrom .. import prices\ndef f(): return base.X + prices.Y\n")
    write("src/shop/models/base.py", "X = 1\n")
    write("src/shop/prices.py", "Y = 2\n")

    found = target_function.find_function("src/shop/models/train.py::f", ())

    assert found.function() == 3
    assert found.function.__module__ == "shop.models.train"
    assert sys.path[:2] == [str(folder / "src/shop/models"), str(folder / "src")]


def test_a_file_whose_name_means_another_module_is_loaded_by_itself(write) -> None:
    write("json.py", "def f(): return __name__\n")

    found = target_function.find_function("json.py::f", ())

    assert found.function() == "kinetic_run_json"
    assert sys.modules["json"].__name__ == "json"
    assert hasattr(sys.modules["json"], "dumps")


def test_a_file_whose_name_is_no_module_s_name_is_loaded_all_the_same(write) -> None:
    write("train.v2.py", "def f(): return 1\n")
    write("my-train.py", "def g(): return 2\n")
    write("__main__.py", "def h(): return 3\n")

    assert target_function.find_function("train.v2.py::f", ()).function() == 1
    assert target_function.find_function("my-train.py::g", ()).function() == 2
    assert target_function.find_function("__main__.py::h", ()).function() == 3


def test_a_file_that_is_not_there_is_answered_with_the_nearest(write) -> None:
    write("training.py", TRAIN)

    refused = refusal("trainin.py::plain")

    assert isinstance(refused, OptionError)
    assert refused.what == "there is no file trainin.py"
    assert refused.next == "kinetic run training.py::plain"


def test_one_colon_is_answered_with_two(write) -> None:
    write("training.py", TRAIN)

    assert refusal("training.py:plain").next == "kinetic run training.py::plain"


def test_a_file_that_is_no_python_is_refused(write) -> None:
    write("notes.txt", "hello")

    assert refusal("notes.txt::f").what == "notes.txt is not a Python file"


# ------------------------------------------------------------------------------------------------------- the function


def test_a_function_that_is_not_there_is_answered_with_the_nearest(write) -> None:
    write("training.py", TRAIN)

    refused = refusal("training.py::trin")

    assert refused.what == "there is no function 'trin' in training.py"
    assert refused.why == "it has train, plain"
    assert refused.next == "kinetic run training.py::train"


def test_what_cannot_be_called_is_refused(write) -> None:
    write("training.py", TRAIN)

    assert refusal("training.py::RATE").what == "RATE in training.py cannot be called"


def test_a_static_method_is_reached_through_its_class(write) -> None:
    write("training.py", TRAIN)

    assert target_function.find_function("training.py::Model.fit", ()).function(3) == 3


def test_the_only_decorated_function_need_not_be_named(write) -> None:
    write("training.py", TRAIN + "    alias = train\n")

    found = target_function.find_function("training.py", ())

    assert isinstance(found.function, RemoteCallable)
    assert found.written == "training.py::train"


def test_a_decorated_function_of_another_file_does_not_count(write) -> None:
    write("training.py", TRAIN)
    write("more.py", "import kinetic\nfrom training import train\n@kinetic.run(accelerator='cpu')\ndef own(): pass\n")

    assert target_function.find_function("more.py", ()).written == "more.py::own"


def test_of_several_decorated_functions_one_must_be_named(write) -> None:
    write("training.py", TRAIN + "    other = kinetic.run(accelerator='cpu')(plain)\n")

    refused = refusal("training.py")

    assert isinstance(refused, OptionError)
    assert refused.what == "training.py has more than one candidate function"
    assert refused.why == "2 of its functions are decorated: train, other"
    assert refused.next == "kinetic run training.py::train"


def test_where_none_is_decorated_the_plain_ones_are_listed(write) -> None:
    write("plain.py", "def a(): pass\ndef _b(): pass\ndef c(): pass\n")

    refused = refusal("plain.py")

    assert refused.what == "plain.py has no decorated function"
    assert refused.why == "it has a, c"
    assert refused.next == "kinetic run plain.py::a     or, as a command: kinetic run -- python plain.py"


# ------------------------------------------------------------------------------------------ errors of the user's file


def test_an_error_while_importing_shows_the_user_s_frames_only_and_one_error(write, kinetic, folder) -> None:
    write("helper.py", "def check(x):\n    return 1 / x\n")
    write("broken.py", "import helper\nhelper.check(0)\ndef f(): pass\n")

    told = kinetic("run", "broken.py::f")

    assert told.exit_code == 1
    assert told.stdout == ""
    assert told.stderr.count("error:") == 1
    assert "error: broken.py cannot be imported: ZeroDivisionError: division by zero [import-failed]" in told.stderr
    files = [line for line in told.stderr.splitlines() if line.startswith("  File ")]
    assert [Path(line.split('"')[1]).relative_to(folder).name for line in files] == ["broken.py", "helper.py"]


def test_the_causes_of_an_error_are_trimmed_as_well(write, kinetic) -> None:
    write(
        "broken.py",
        "import kinetic\ntry:\n    kinetic.run('moon')\nexcept ValueError as e:\n    raise KeyError(1) from e\n",
    )

    told = kinetic("run", "broken.py::f")

    assert "unknown accelerator" in told.stderr
    files = {line.split('"')[1] for line in told.stderr.splitlines() if line.startswith("  File ")}
    assert {Path(file).name for file in files} == {"broken.py"}


def test_a_missing_module_is_told_with_the_way_to_install_it(write) -> None:
    write("broken.py", "import nothing_of_this_name.inner\n")

    refused = refusal("broken.py::f")

    assert refused.what == "broken.py cannot be imported: there is no module nothing_of_this_name"
    has_pip = importlib.util.find_spec("pip") is not None  # an environment that uv has made has none
    installer = f"{sys.executable} -m pip install" if has_pip else f"uv pip install --python {sys.executable}"
    assert str(refused.next).endswith(f"{installer} nothing_of_this_name")


@pytest.mark.parametrize("has_kinetic", [True, False])
@pytest.mark.parametrize("is_active", [True, False])
def test_a_module_missing_in_a_kinetic_of_its_own_is_looked_for_in_the_projects_environment(
    write, kinetic, folder, monkeypatch, is_active, has_kinetic
) -> None:
    environment = folder / ("active" if is_active else ".venv")
    write("deep/broken.py", "import nothing_of_this_name\n")
    for name in ("python", *(["kinetic"] if has_kinetic else [])):
        write(f"{environment}/bin/{name}", "")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    if is_active:
        monkeypatch.setenv("VIRTUAL_ENV", str(environment))

    told = kinetic("run", "-a", "cpu", "deep/broken.py::f", "it's").stderr

    install = "" if has_kinetic else f"uv pip install --python {environment}/bin/python kinetic-jobs     then: "
    typed = f"{environment}/bin/kinetic run -a cpu deep/broken.py::f 'it'\"'\"'s'"
    assert f"next:  the project has another one: {install}{typed}" in told
    assert f"not those in {environment}; to use these: {install}{typed}" in told


def test_an_environment_is_another_one_only_where_this_one_is_not_active(write, folder, monkeypatch) -> None:
    write(".venv/bin/python", "")

    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert target_function.other_environment(str(folder)) == ""

    monkeypatch.delenv("VIRTUAL_ENV")
    assert target_function.other_environment(str(folder)) == f"{folder}/.venv"


def test_a_syntax_error_is_shown_where_it_is(write, kinetic) -> None:
    write("broken.py", "x = 1\ndef f(:\n")

    told = kinetic("run", "broken.py::f")

    assert 'broken.py", line 2' in told.stderr
    assert "^" in told.stderr
    assert told.exit_code == 1


def test_a_script_that_ends_the_program_is_told_to_guard_itself(write) -> None:
    write("broken.py", "import sys\nsys.exit(3)\n")

    refused = refusal("broken.py::f")

    assert refused.what == "broken.py ended the program while it was imported: exit(3)"
    assert refused.why == "line 2 of broken.py: sys.exit(3)"
    assert '__name__ == "__main__"' in str(refused.next)
    assert str(refused.next).endswith("or, as a command: kinetic run -- python broken.py")


def test_a_decorator_that_refuses_keeps_its_own_words_and_on_request_shows_the_line(
    write, kinetic, monkeypatch
) -> None:
    write("broken.py", "import kinetic\n@kinetic.run(accelerator='tpu-v9')\ndef f(): pass\n")

    told = kinetic("run", "broken.py::f")
    debugged = kinetic("--debug", "run", "broken.py::f")
    monkeypatch.setenv("KINETIC_DEBUG", "1")
    by_variable = kinetic("run", "broken.py::f")

    assert (told.exit_code, debugged.exit_code, by_variable.exit_code) == (2, 2, 2)
    assert [line.split()[0] for line in told.stderr.splitlines()] == ["error:", "why:", "next:"]
    assert all('broken.py", line 2' in shown.stderr for shown in (debugged, by_variable))


# -------------------------------------------------------------------------------------------------------- the options


def options_of(written: str, *names: str, **given):
    function = target_function.find_function(written, ()).function
    return run._decorated(function, given, names)._options


def test_a_decorated_function_keeps_its_options_and_those_given_here_win(write) -> None:
    write("training.py", TRAIN)

    assert options_of("training.py::train").accelerator == "gpu-l4"
    changed = options_of("training.py::train", accelerator="cpu", deadline=5.0, spot=False)
    assert (changed.accelerator, changed.deadline, changed.spot) == ("cpu", 5.0, False)
    assert changed.capture_env_vars == ("TOKEN",)


def test_a_plain_function_gets_the_decorator_s_defaults_and_a_cpu(write) -> None:
    import kinetic

    write("training.py", TRAIN)

    assert options_of("training.py::plain") == kinetic.run(accelerator="cpu")(len)._options


def test_variables_are_captured_besides_those_of_the_decorator(write) -> None:
    write("training.py", TRAIN)

    assert list(options_of("training.py::train", "WANDB_*").capture_env_vars) == ["TOKEN", "WANDB_*"]
    assert list(options_of("training.py::train", "TOKEN").capture_env_vars) == ["TOKEN"]
    assert list(options_of("training.py::plain", "HF_TOKEN").capture_env_vars) == ["HF_TOKEN"]


def test_an_option_that_cannot_work_is_a_mistake_on_the_command_line(write, kinetic) -> None:
    write("training.py", TRAIN)

    assert kinetic("run", "--accelerator", "tpu-v9", "training.py::plain", "1").exit_code == 2
    assert kinetic("run", "--backend", "moon", "training.py::plain", "1").exit_code == 2
    assert kinetic("run", "--deadline", "soon", "training.py::plain", "1").exit_code == 2


def test_a_coroutine_is_refused_with_the_decorator_s_words(write, kinetic) -> None:
    write("training.py", "async def f(): pass\n")

    told = kinetic("run", "training.py::f")

    assert told.exit_code == 1
    assert "[callable]" in told.stderr


# ------------------------------------------------------------------------------------------------------ the arguments


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("--", "--help"), ("1", "--help")])
def test_the_usage_of_the_function_is_shown_on_request(words, write, kinetic) -> None:
    write("training.py", TRAIN)

    told = kinetic("run", "training.py::train", *words)

    assert (told.exit_code, told.stderr) == (0, "")
    assert told.stdout.splitlines()[:4] == [
        "Usage: kinetic run [OPTIONS] training.py::train [ARGUMENTS]",
        "",
        "  train(lr: float, steps: int = 10)",
        "  Train a model.",
    ]


def test_a_wrong_argument_shows_the_usage_and_has_exit_code_2(write, kinetic) -> None:
    write("training.py", TRAIN)

    told = kinetic("run", "training.py::train", "fast")

    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith("Usage: kinetic run [OPTIONS] training.py::train [ARGUMENTS]\n")
    assert "error: Invalid value for '--lr': 'fast' is not a valid float. [arguments]\n" in told.stderr


@pytest.mark.parametrize("words", [["--accelerator", "cpu"], ["-d"], ["--no-spot"]])
def test_options_behind_the_file_belong_to_the_function_and_ours_are_sent_before_it(words, write, kinetic) -> None:
    write("training.py", TRAIN)

    told = kinetic("run", "training.py::plain", "1", *words)

    assert told.exit_code == 2
    assert f"error: training.py::plain has no option {words[0]} [arguments]" in told.stderr
    assert told.stderr.endswith(f"next:  kinetic run {' '.join(words)} training.py::plain 1\n")


def test_without_a_file_the_command_says_what_it_needs(kinetic) -> None:
    assert kinetic("run").exit_code == 2


@pytest.mark.parametrize("words", [("--lr", "1", "train.py::train"), ("-x", "train.py::train"), ("--lr=1", "train.py")])
def test_an_argument_of_the_function_before_the_file_is_told_where_it_belongs(words, kinetic) -> None:
    told = kinetic("run", *words)

    option = words[0].partition("=")[0]
    assert told.exit_code == 2
    assert told.stderr.splitlines()[0] == f"error: kinetic run has no option {option} [usage]"
    assert f"next:  kinetic run {words[-1]} {option}" in told.stderr


@pytest.mark.parametrize("words", [(), ("train.py::train",)])
def test_a_misspelt_option_of_kinetic_is_answered_with_the_nearest(words, kinetic) -> None:
    told = kinetic("run", "--acelerator", "cpu", *words)

    assert told.exit_code == 2
    assert "no such option '--acelerator'" in told.stderr
    assert "--accelerator" in told.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("-a", "cpuu"), "write --accelerator cpu"),
        (("-a", "tpu-v5e-9"), "write --accelerator tpu-v5litepod-2x4 or --accelerator tpu-v5litepod-4x4"),
        (("--backend", "locl"), "--backend local"),
        (("--notify", ""), "--notify desktop"),
        (("--retries", "x"), "write --retries 3"),
        (("--deadline", "x"), "--deadline 3600, or --deadline 10m"),
        (("--resources", "memory=16"), "write --resources memory=16Gi"),
        (("--resources", "4"), "write --resources cpu=4,memory=16Gi"),
    ],
)
@pytest.mark.parametrize("target", [["FILE::train"], ["--", "true"]])
def test_advice_is_written_as_it_is_typed_here(words, advice, target, kinetic, tmp_path) -> None:
    (tmp_path / "train.py").write_text("def train(): pass\n")
    typed = [word.replace("FILE", f"{tmp_path}/train.py") for word in target]

    told = kinetic("run", *words, *typed)

    assert (told.exit_code, told.stderr.splitlines()[-1]) == (2, f"next:  {advice}")


def test_advice_about_a_gpu_that_is_not_here_is_written_as_it_is_typed(kinetic, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    told = kinetic("run", "-a", "gpu-l4x8", "--backend", "local", "--", "true")

    assert told.stderr.splitlines()[-1].endswith("or use --accelerator cpu"), told.stderr


def test_advice_about_the_code_of_a_file_stays_as_it_is_written_there(kinetic, tmp_path) -> None:
    (tmp_path / "train.py").write_text('import kinetic\n@kinetic.run(accelerator="cpuu")\ndef train(): pass\n')

    told = kinetic("run", f"{tmp_path}/train.py::train")

    assert told.stderr.splitlines()[-1] == 'next:  write accelerator="cpu"'


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("--dry-run", "kinetic package --dry-run"),
        ("--data=a=b", "kinetic.Data"),
        ("--sweep=lr=1", "run_async_map"),
        ("--max-concurrent=2", "max_concurrent"),
    ],
)
def test_an_option_for_commands_names_what_a_function_has_instead(flag, word, kinetic) -> None:
    told = kinetic("run", flag, "train.py::train")

    assert word in told.stderr.splitlines()[1]


@pytest.mark.parametrize(("written", "kept"), [("", "20m"), ('[tool.kinetic]\nkeep_warm = "1h"\n', None)])
def test_the_pod_stays_for_the_next_save_unless_the_project_says_how_long(
    written, kept, write, folder, monkeypatch
) -> None:
    write("train.py", TRAIN)
    (folder / "pyproject.toml").write_text(written)
    monkeypatch.setattr(run.signal, "signal", lambda *handler: None)  # of this process
    monkeypatch.setattr(os, "environ", {**os.environ})
    reading, writing = os.pipe()
    found = target_function.find_function("train.py::plain", [])

    run._Reporter(writing).submitting(found.function)

    assert os.environ.get("KINETIC_KEEP_WARM") == kept
    assert os.read(reading, 100) == b'{"submitting": true}\n'
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--", "python", "train.py"], "kinetic dev cannot run python: it is a command"),
        (["trian.py::train"], "kinetic dev train.py::train"),
        (["--lr", "1", "train.py::train"], "kinetic dev has no option --lr"),
        (["--dry-run", "train.py::train"], "kinetic dev has no option --dry-run"),
    ],
)
def test_what_cannot_be_run_at_each_save_is_refused_before_anything_is_watched(words, why, write, kinetic) -> None:
    write("train.py", TRAIN)

    told = kinetic("dev", *words)

    assert told.exit_code == 2
    assert why in told.stderr
    assert "watching" not in told.stderr
