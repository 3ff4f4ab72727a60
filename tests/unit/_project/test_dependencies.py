"""What a project declares: where it is looked for, how it is read, what is taken out and what is refused."""

from __future__ import annotations

import textwrap
import tomllib

import pytest
from packaging.requirements import Requirement
from servers.wheels import made_wheel

from kinetic._output import terminal as output
from kinetic._project import dependencies, requirements
from kinetic._project.dependencies import Wanted
from kinetic._project.root import Plan
from kinetic._wire.python_runtime import SETTING
from kinetic.errors import OptionError


class Tree:
    """A home folder with a project in it."""

    def __init__(self, home):
        self.home = home
        self.root = home / "work" / "project"
        self.entry = self.root / "app"
        self.entry.mkdir(parents=True)
        self.environ = {"HOME": str(home)}

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def find(self, entry="app", **more):
        plan = Plan(self.root, entry, None, ("",))
        return dependencies.find(plan, environ=self.environ, **more)


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "home")


def refused(act):
    with pytest.raises(OptionError) as caught:
        act()
    return str(caught.value).splitlines()


# ----------------------------------------------------------------------------------------------- where it is looked for


def test_the_nearest_level_wins(tree):
    tree.write("requirements.txt", "far\n")
    near = tree.write("app/pyproject.toml", '[project]\ndependencies = ["near"]\n')

    found = tree.find()

    assert (found.source, found.kind, found.lines) == (near, "pyproject", ("near",))
    assert found.notes == (f"dependencies come from {near}",)


def test_on_one_level_requirements_win_over_a_pyproject(tree):
    file = tree.write("app/requirements.txt", "six\n")
    tree.write("app/pyproject.toml", '[project]\ndependencies = ["near"]\n')

    found = tree.find()

    assert (found.source, found.kind, found.lines) == (file, "requirements", ("six",))
    assert found.notes == (f"dependencies come from {file}; pyproject.toml beside it is not read",)


def test_a_folder_with_the_name_of_a_file_is_passed_over(tree):
    (tree.entry / "requirements.txt").mkdir()
    file = tree.write("requirements.txt", "six\n")

    assert tree.find().source == file


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_text("gitdir: …")])
def test_the_climb_ends_with_the_level_that_holds_git(tree, make):
    tree.write("../requirements.txt", "outside\n")
    make(tree.root / ".git")

    found = tree.find()

    assert (found.source, found.kind, found.lines) == (None, "none", ())
    climbed = f"no requirements.txt or pyproject.toml from {tree.entry} up to {tree.root}"
    assert found.notes == (f"{climbed}: only base packages will be installed",)


def test_where_only_one_folder_is_searched_it_is_named_once(tree):
    (tree.entry / ".git").mkdir()

    (note,) = tree.find().notes

    assert note.startswith(f"no requirements.txt or pyproject.toml in {tree.entry}: only base packages")


def test_files_of_other_tools_that_name_dependencies_are_said_not_to_be_read(tree):
    (tree.root / ".git").mkdir()
    conda, setup = tree.write("environment.yml", "dependencies: [numpy]\n"), tree.write("setup.py", "setup()\n")

    (note,) = tree.find().notes

    assert note.endswith(f"only base packages will be installed; not read: {conda}, {setup}")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("Pipfile", "pipenv requirements > requirements.txt"),
        ("requirements.in", "uv pip compile requirements.in -o requirements.txt"),
        ("requirements-gpu.txt", "echo '-r requirements-gpu.txt' > requirements.txt"),
        ("requirements/base.txt", "echo '-r requirements/base.txt' > requirements.txt"),
    ],
)
def test_what_turns_a_file_that_is_not_read_into_one_that_is_read_is_said(tree, name, advice):
    tree.write("app/.git/HEAD", "")
    file = tree.write(f"app/{name}", "six\n")

    [note] = tree.find().notes

    assert note.endswith(f"; not read: {file} ({advice} makes a file that is read)")


def test_the_level_that_holds_git_is_looked_at_itself(tree):
    (tree.root / ".git").mkdir()
    file = tree.write("requirements.txt", "six\n")

    found = tree.find()

    assert found.source == file
    assert found.notes == (f"dependencies come from {file}",)


def test_the_climb_ends_with_the_home_folder(tree):
    (tree.home.parent / "requirements.txt").write_text("outside\n")

    assert tree.find().source is None

    (tree.home / "requirements.txt").write_text("six\n")

    assert tree.find().source == tree.home / "requirements.txt"


def test_the_climb_ends_at_the_home_folder_through_a_link_too(tree, tmp_path):
    (tmp_path / "requirements.txt").write_text("outside\n")
    (tmp_path / "link").symlink_to(tree.home)
    tree.environ = {"HOME": str(tmp_path / "link")}

    assert tree.find().source is None


def test_a_file_may_lie_above_the_folder_that_ships(tree):
    file = tree.write("../requirements.txt", "six\n")

    found = tree.find()

    assert found.source == file.resolve()
    assert found.lines == ("six",)


def test_a_file_above_the_code_is_told_where_no_git_ties_them_together(tree):
    file = tree.write("../requirements.txt", "six\n").resolve()

    above = tree.find().notes
    tree.write("requirements.txt", "six\n")
    in_the_project = tree.find().notes

    assert above[1] == f"{file} is in a folder above {tree.entry}, and no .git shows that the two belong together"
    assert len(in_the_project) == 1


# ----------------------------------------------------------------------------------------------------- requirements.txt


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ()),
        ("# nothing\n\n   \n", ()),
        ("six\nnumpy >= 1\n", ("six", "numpy >= 1")),
        ("six # why\n  numpy\t>=1  # because\r\n", ("six", "numpy >=1")),
        ("pkg @ https://a/b#egg=pkg\n", ("pkg @ https://a/b#egg=pkg",)),
        ("six \\\n  >=1,\\\n  <2\nnext", ("six >=1, <2", "next")),
        ("six==1 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n", ("six==1 --hash=sha256:aa --hash=sha256:bb",)),
        ("six==1\n    --hash=sha256:aa\nnext\n", ("six==1 --hash=sha256:aa", "next")),
        ("six \\   \n>=1\n", ("six >=1",)),
        ("six \\\n# a comment ends it \\\nnext\n", ("six", "next")),
        ("six \\", ("six",)),
        ("--index-url https://host/simple\nsix\n", ("--index-url https://host/simple", "six")),
        ("--prefer-binary\nsix\n", ("--prefer-binary", "six")),
        ("\ufeffsix\n", ("six",)),
    ],
)
def test_the_lines_of_a_requirements_file(tree, text, lines):
    tree.write("app/requirements.txt", "")
    (tree.entry / "requirements.txt").write_bytes(text.encode())

    assert tree.find().lines == lines


def test_a_file_that_is_not_text_is_told(tree):
    (tree.entry / "requirements.txt").write_bytes(b"six\n\xff\n")

    what, why, next_ = refused(tree.find)

    assert what == f"the dependencies in {tree.entry / 'requirements.txt'} cannot be read [dependency]"
    assert why.startswith("why:   UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff")
    assert next_ == "next:  correct the file: it must be readable, and UTF-8"


def test_extras_say_nothing_about_a_requirements_file(tree):
    file = tree.write("app/requirements.txt", "six\n")

    assert tree.find(wanted=Wanted(["train"])).notes[1] == f"extras and groups have no meaning for {file}: train"


# ------------------------------------------------------------------------------------------------------ what is removed


@pytest.mark.parametrize(
    "line",
    [
        "jax",
        "jaxlib",
        "libtpu",
        "libtpu-nightly",
        "LibTPU_nightly==0.1",
        "JAX",
        "jax[cuda12]",
        "jax [tpu] >= 0.4",
        "jax==0.4.30",
        "jax>=0.4,<1",
        "jax~=0.4",
        "jax!=1",
        "jax===0.4",
        "jax (>=0.4)",
        "jax; python_version < '3.12'",
        "jax @ https://host/jax-0.4-py3-none-any.whl",
        "jax@https://host/jax-0.4-py3-none-any.whl",
        "jax --hash=sha256:aa",
        "jax==0.4 # kn: keep",
        "jax==0.4 # kn:supervisor",
    ],
)
def test_jax_is_left_to_the_base(tree, line):
    file = tree.write("app/requirements.txt", f"six\n{line}\n")

    found = tree.find()

    assert found.lines == ("six",)
    text = line.partition(" #")[0]
    assert found.filtered == (text,)
    told = f"not installed from {file}, because the base environment brings its own JAX: {text}"
    assert found.notes[1:] == (f"{told} ('# kn:keep' on the line keeps it)",)


@pytest.mark.parametrize(
    "line",
    [
        "jax==0.4 # kn:keep",
        "jax==0.4 #kn:keep",
        "jax==0.4  #  kn:keep, the pod's one is too old",
        "jax==0.4 \\\n  --hash=sha256:aa # kn:keep",
        "jax-cuda12-plugin",
        "jaxtyping",
        "flax",
        "jax_extra",
        "nvidia-cublas-cu12",
        "libtpu-nightly-tools",
        "--find-links https://host/jax",
        "-e git+https://host/jax#egg=jax",
    ],
)
def test_everything_else_stays(tree, line):
    tree.write("app/requirements.txt", f"{line}\n")

    found = tree.find()

    assert len(found.lines) == 1
    assert found.filtered == ()
    assert len(found.notes) == 1


def test_one_line_names_everything_that_was_removed(tree):
    tree.write("app/requirements.txt", "jax==0.4 \\\n  --hash=sha256:aa\nsix==1 \\\n  --hash=sha256:bb\njaxlib\n")

    found = tree.find()

    assert found.lines == ("six==1 --hash=sha256:bb",)
    assert found.filtered == ("jax==0.4 --hash=sha256:aa", "jaxlib")
    assert sum("brings its own JAX: jax==0.4 --hash=sha256:aa, jaxlib (" in note for note in found.notes) == 1


# ------------------------------------------------------------------------------------------------------ what is refused

PATH, FOLDER = "it names a path of this machine", "it installs from a folder of this machine"
URL, LOOK = "it names a file of this machine", "it looks into a folder of this machine"
ABSENT = "the file that it includes is not there"
ELSEWHERE = "the file that it includes is not on this machine"
BESIDE = "it includes another file beside something else"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-e .", FOLDER),
        ("-e ./lib", FOLDER),
        ("-e./lib", FOLDER),
        ("-e lib", FOLDER),
        ("-e '../my lib'", FOLDER),
        ("--editable ../lib", FOLDER),
        ("--editable=../lib", FOLDER),
        ("-e git+/srv/lib", FOLDER),
        ("-e file:///srv/lib", URL),
        ("-e git+file:///srv/lib", URL),
        ("-r other.txt", ABSENT),
        ("-rother.txt", ABSENT),
        ("--requirement other.txt", ABSENT),
        ("--requirement=other.txt", ABSENT),
        ("-r https://host/other.txt", ELSEWHERE),
        ("-c limits.txt", ABSENT),
        ("-climits.txt", ABSENT),
        ("--constraint limits.txt", ABSENT),
        ("--use-feature=x -r other.txt", BESIDE),
        ("-r '../my files/other.txt'", ABSENT),
        ("-c ${LIMITS}/limits.txt", ELSEWHERE),
        ("-f ./wheels", LOOK),
        ("-f./wheels", LOOK),
        ("--find-links wheels", LOOK),
        ("--find-links=/srv/wheels", LOOK),
        ("--find-links file:///srv/wheels", URL),
        ("--index-url ./simple", LOOK),
        ("-i ./simple", LOOK),
        ("--extra-index-url=./simple", LOOK),
        ("--use-feature=x --extra-index-url ./more", LOOK),
        ("file:///srv/x.whl", URL),
        ("x @ file:///srv/x.whl", URL),
        ("x@file:x.whl", URL),
        ("x @ FILE:///srv/x.whl", URL),
        (".", PATH),
        ("..", PATH),
        (".[train]", PATH),
        ("./lib", PATH),
        ("../lib", PATH),
        (".\\lib", PATH),
        ("..\\lib", PATH),
        ("/srv/lib", PATH),
        ("/srv/x.whl", PATH),
        ("~/x.whl", PATH),
        ("~", PATH),
        ("wheels/x.whl", PATH),
        ("wheels\\x.whl", PATH),
        ("x.whl", PATH),
        ("x-1.0.tar.gz; python_version > '3'", PATH),
        ("C:\\wheels\\x", PATH),
        ("C:/wheels/x", PATH),
        ("x @ ./x", PATH),
        ("x@./x", PATH),
        ("x @ /srv/x", PATH),
        ("x[y]@../x", PATH),
        ("x @ x.whl", PATH),
        ("x @ ${PROJECT_ROOT}/x", PATH),
        ("${PROJECT_ROOT}/x", PATH),
    ],
)
def test_what_only_this_machine_has_is_refused_with_file_and_line(tree, line, reason):
    file = tree.write("app/requirements.txt", f"six\n\n{line} # here\n")

    what, why, next_ = refused(tree.find)

    assert what == f"{file}, line 3 cannot be installed in a job: {line} [dependency]"
    assert why.startswith(f"why:   {reason}")
    assert next_.startswith("next:  ")


@pytest.mark.parametrize(
    "line",
    [
        "six",
        "six.moves",
        "six==1.16.0; sys_platform == 'linux'",
        "x @ https://host/x.whl",
        "x @ git+https://host/x@main",
        "x @ git+ssh://git@host/x",
        "https://host/x.whl",
        "git+https://host/x.git",
        "-e git+https://host/x.git#egg=x",
        "-e https://host/x.zip",
        "-e hg+https://host/x",
        "-e git+git@host:x.git",
        "--find-links https://host/wheels/index.html",
        "--index-url https://${TOKEN}@host/simple",
        "--extra-index-url ${INDEX}",
        "-i https://host/simple",
        "--no-binary x",
        "six # see ./notes.txt and file:///srv",
    ],
)
def test_what_any_machine_can_reach_is_not_refused(tree, line):
    tree.write("app/requirements.txt", f"{line}\n")

    assert len(tree.find().lines) == 1


def test_options_beside_each_other_are_lines_of_their_own(tree):
    # uv 0.13 takes "URL --trusted-host HOST" for the address, asks nothing there, and takes the package from PyPI
    tree.write(
        "requirements.txt", "--extra-index-url https://h/simple --trusted-host h -f https://h/links\nsix --hash=x\n"
    )

    assert tree.find().lines[:3] == (
        "--extra-index-url https://h/simple",
        "-f https://h/links",
        "six --hash=x",
    )


def test_what_pip_takes_in_a_file_and_uv_does_not_are_settings_of_uv(tree):
    tree.write("app/requirements.txt", "--pre\n--trusted-host=h.example:8443\n--trusted-host other\nsix\n")

    found = tree.find()

    assert found.lines[0] == "six"
    assert settings_of(found)["tool"]["uv"] == {
        "prerelease": "allow",
        "allow-insecure-host": ["h.example:8443", "other"],
    }


@pytest.mark.parametrize(
    ("line", "installed"),
    [
        ("-e git+https://h.example/x.git@v1#egg=x", "x @ git+https://h.example/x.git@v1"),
        (
            "--editable=git+ssh://git@h.example/x.git#egg=x[y]&subdirectory=python",
            "x[y] @ git+ssh://git@h.example/x.git#subdirectory=python",
        ),
        ("-e git+https://h.example/x.git", "git+https://h.example/x.git"),
    ],
)
def test_a_repository_that_pip_installs_as_editable_is_installed_in_a_job_like_any_other(tree, line, installed):
    # uv 0.13: "Git sources cannot be editable"
    tree.write("app/requirements.txt", f"{line}\n")

    assert tree.find().lines == (installed,)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--use-pep517", "it is an option of pip install, and not of a requirements file"),
        ("--no-deps", "it is an option of pip install, and not of a requirements file"),
        (
            'six==1.16.0 --config-settings "a=b" --hash=sha256:ab',
            "uv, which installs for jobs, takes only --hash behind a requirement, and not --config-settings",
        ),
    ],
)
def test_a_line_that_uv_cannot_read_is_refused_before_a_job_waits_for_a_machine(tree, line, why):
    file = tree.write("app/requirements.txt", f"six\n{line}\n")

    what, reason, _ = refused(tree.find)

    assert what == f"{file}, line 2 cannot be installed in a job: {line} [dependency]"
    assert reason == f"why:   {why}"


# Before a job waits for its machine: as after a change of Python, which wheels of flash-attn are made for one by one.
@pytest.mark.parametrize("tags", ["cp27-cp27m-linux_x86_64", "cp311-cp311-win_amd64"])
def test_a_wheel_at_an_address_that_no_job_can_use_is_refused_with_its_line(tree, tags):
    line = f"attn @ https://h.example/v2/attn-2.8%2Bcu12torch2.8-{tags}.whl"
    file = tree.write("app/requirements.txt", f"six\n{line}\n")

    what, why, _ = refused(tree.find)

    assert what == f"{file}, line 2 cannot be installed in a job: {line} [dependency]"
    assert why.startswith(f"why:   it is for {tags}, and jobs have the Python of this process, here or on Linux")


@pytest.mark.parametrize(
    "line",
    [
        "https://h.example/x-1-py3-none-any.whl",
        "x @ https://h.example/x-1-cp38-abi3-manylinux_2_28_x86_64.whl#sha256=ab",
        "x @ https://h.example/x-1-cp27-cp27m-win_amd64.whl ; sys_platform == 'win32'",
        "x @ https://h.example/${FILE}.whl",
    ],
)
def test_a_wheel_at_an_address_that_some_job_can_use_is_not_refused(tree, line):
    tree.write("app/requirements.txt", f"{line}\n")

    assert tree.find().lines == (line,)


def test_a_line_begins_where_its_first_part_stands(tree):
    file = tree.write("app/requirements.txt", "six \\\n  >=1\nx \\\n  @ ./x\n")

    assert refused(tree.find)[0] == f"{file}, line 3 cannot be installed in a job: x @ ./x [dependency]"


# ------------------------------------------------------------------------------------------------- files in other files


def test_a_file_that_another_one_includes_is_read_in_its_place(tree):
    tree.write("app/requirements.txt", "first\n-r requirements/base.txt  # what all need\nlast\n")
    tree.write("app/requirements/base.txt", "six==1.16 \\\n  --hash=sha256:ab\n--requirement=../more.txt\njaxlib\n")
    tree.write("app/more.txt", "idna; python_version > '3'\n")

    found = tree.find()

    assert found.lines == ("first", "six==1.16 --hash=sha256:ab", "idna; python_version > '3'", "last")
    assert found.filtered == ("jaxlib",)


def test_files_that_include_each_other_are_read_once(tree):
    tree.write("app/requirements.txt", "-r base.txt\nsix\n")
    tree.write("app/base.txt", "idna\n-r requirements.txt\n")

    assert tree.find().lines == ("idna", "six")


def test_a_file_of_constraints_gives_constraints(tree):
    tree.write("app/requirements.txt", "six\n-c limits.txt\n")
    limits = "six<2\n# a comment\njax==0.4\nkinetic-jobs==1\nlibtpu==1 # kn:keep\n--prefer-binary\n-r more.txt\n"
    tree.write("app/limits.txt", limits)
    tree.write("app/more.txt", "idna>=3\n")

    found = tree.find()

    assert found.lines == ("six", "-c six<2", "-c libtpu==1", "--prefer-binary", "-c idna>=3")
    assert found.filtered == ("-c jax==0.4",)
    assert found.names == {"six", ""}  # a constraint brings nothing


def test_a_line_that_cannot_be_installed_is_named_with_the_file_that_has_it(tree):
    tree.write("app/requirements.txt", "six\n-r base.txt\n")
    base = tree.write("app/base.txt", "\nidna\n./lib\n")

    assert refused(tree.find)[0] == f"{base}, line 3 cannot be installed in a job: ./lib [dependency]"

    base.write_text("-r gone.txt\n")

    what, why, _ = refused(tree.find)
    assert what == f"{base}, line 1 cannot be installed in a job: -r gone.txt [dependency]"
    assert str(tree.entry / "gone.txt") in why

    base.write_text("-c limits.txt\n")
    limits = tree.write("app/limits.txt", "x @ file:///conda/x\n")

    assert refused(tree.find)[0] == f"{limits}, line 1 cannot be installed in a job: x @ file:///conda/x [dependency]"


def test_another_project_is_found_from_the_included_file_and_from_the_first_one(tree):
    """Pip looks from the folder where it was started, uv users write paths from the file."""
    tree.write("app/requirements.txt", "-r requirements/all.txt\n")
    tree.write("app/requirements/all.txt", "-e ../common\n-e ../../tools\n")
    tree.write("common/pyproject.toml", '[project]\nname = "common"\ndependencies = ["six"]\n')
    tree.write("tools/pyproject.toml", '[project]\nname = "tools"\ndependencies = ["idna"]\n')

    found = tree.find()

    assert found.projects == (str(tree.root / "common"), str(tree.root / "tools"))
    assert found.lines == ("six", "idna")


def test_what_another_project_needs_from_this_machine_only_is_refused_with_its_own_file(tree):
    tree.write("app/requirements.txt", "-e ../common\n")
    file = tree.write("common/pyproject.toml", '[project]\ndependencies = [\n  "x @ file:///srv/x",\n]\n')

    assert refused(tree.find)[0] == f"{file}, line 3 cannot be installed in a job: x @ file:///srv/x [dependency]"


# ------------------------------------------------------------------------------------------------------- pyproject.toml


@pytest.mark.parametrize(
    "table",
    [
        '[tool.setuptools.dynamic]\ndependencies = { file = ["main.txt", "more/other.txt"] }\n',
        '[tool.hatch.metadata.hooks.requirements_txt]\nfiles = ["main.txt", "more/other.txt"]\n',
    ],
)
def test_dynamic_dependencies_come_from_the_files_that_the_build_backend_is_told(tree, table):
    file = tree.write("app/pyproject.toml", f'[project]\nname = "x"\ndynamic = ["version", "dependencies"]\n{table}')
    tree.write("app/main.txt", "six # all\n-r more/base.txt\n")
    tree.write("app/more/other.txt", "numpy\n")
    tree.write("app/more/base.txt", "idna\n")

    found = tree.find()

    assert (found.source, found.lines) == (file, ("six", "idna", "numpy"))
    assert found.notes == (f"dependencies come from {file}",)

    tree.write("app/main.txt", "six\n./lib\n")

    assert refused(tree.find)[0].startswith(f"{tree.entry}/main.txt, line 2 cannot be installed")

    (tree.entry / "main.txt").unlink()

    assert refused(tree.find)[0].startswith(f"the dependencies in {tree.entry}/main.txt cannot be read")


def test_a_file_of_setuptools_is_named_as_one_text_too_and_counts_for_dynamic_dependencies_only(tree):
    table = '[tool.setuptools.dynamic]\ndependencies = { file = "main.txt" }\n'
    tree.write("app/main.txt", "six\n")
    tree.write("app/pyproject.toml", f'[project]\ndynamic = ["dependencies"]\n{table}')

    assert tree.find().lines == ("six",)

    tree.write("app/pyproject.toml", f'[project]\ndependencies = ["idna"]\n{table}')

    assert tree.find().lines == ("idna",)


def test_extras_with_jax_for_hardware_are_left_to_the_base_which_fits_each_job(tree):
    tree.write(
        "app/pyproject.toml",
        """
        [project]
        dependencies = ["six"]
        [project.optional-dependencies]
        gpu = ["jax[cuda12]"]
        tpu = ["jax[tpu]>=0.4"]
        """,
    )

    found = tree.find(wanted=Wanted(["gpu", "tpu"]))

    assert (found.lines, found.filtered) == (("six",), ("jax[cuda12]", "jax[tpu]>=0.4"))


def test_a_pyproject_gives_its_main_dependencies(tree):
    file = tree.write(
        "app/pyproject.toml",
        """
        [project]
        requires-python = ">=3.11"
        dependencies = ["six==1.16.0", 'numpy>=1; python_version < "4"', "jax[cuda12]"]
        [project.optional-dependencies]
        train = ["idna"]
        [dependency-groups]
        dev = ["pytest"]
        """,
    )

    found = tree.find()

    assert found.source == file
    assert found.lines == ("six==1.16.0", 'numpy>=1; python_version < "4"')
    assert found.filtered == ("jax[cuda12]",)
    assert found.requires_python == ">=3.11"
    assert len(found.notes) == 2  # the other tables are passed over in silence, since the main one is there


@pytest.mark.parametrize("comment", ["# kn:keep", "#kn:keep"])
def test_a_comment_beside_a_string_of_toml_keeps_it(tree, comment):
    tree.write("app/pyproject.toml", f"[project]\ndependencies = [\n  'jax==0.4', {comment}\n  'jaxlib',\n]\n")

    found = tree.find()

    assert (found.lines, found.filtered) == (("jax==0.4",), ("jaxlib",))


def test_a_comment_inside_a_string_of_toml_keeps_it_too(tree):
    tree.write("app/pyproject.toml", '[project]\ndependencies = ["jax==0.4 # kn:keep"]\n')

    assert tree.find().lines == ("jax==0.4",)


UNREAD = {
    "[tool.pixi.dependencies]": '[tool.pixi.dependencies]\nsix = "*"\n',
    "[tool.pixi.pypi-dependencies]": '[tool.pixi.pypi-dependencies]\nsix = "*"\n',
    "[tool.hatch.envs.default.dependencies]": '[tool.hatch.envs.default]\ndependencies = ["six"]\n',
    "[dependency-groups]": '[dependency-groups]\ndev = ["six"]\n',
    "[project.optional-dependencies]": '[project.optional-dependencies]\ntrain = ["six"]\n',
    'dynamic = ["dependencies"]': '[project]\ndynamic = ["version", "dependencies"]\n',
}


@pytest.mark.parametrize(("name", "text"), UNREAD.items(), ids=list(UNREAD))
def test_tables_that_are_not_read_are_named_as_they_stand_in_the_file(tree, name, text, capsys, monkeypatch):
    monkeypatch.delenv("KINETIC_LOG_LEVEL", raising=False)
    file = tree.write("app/pyproject.toml", text)

    note = tree.find().notes[1]
    output.warn(note)

    told = f"{file} has no dependencies in [project]: only base packages will be installed; not read: {name}"
    assert note == told
    assert capsys.readouterr().err == f"kinetic: warning: {told}\n"


def test_all_tables_that_are_not_read_stand_in_one_note(tree):
    tree.write("app/pyproject.toml", UNREAD['dynamic = ["dependencies"]'] + "".join([*UNREAD.values()][:-1]))

    assert tree.find().notes[1].endswith(f"not read: {', '.join(UNREAD)}")


@pytest.mark.parametrize("text", ["", "[tool.ruff]\n", '[project]\nname = "x"\n', "[project]\ndependencies = []\n"])
def test_a_pyproject_without_dependencies_ends_the_search(tree, text):
    tree.write("requirements.txt", "far\n")
    file = tree.write("app/pyproject.toml", text)

    found = tree.find()

    assert (found.source, found.lines) == (file, ())
    assert found.notes[1] == f"{file} has no dependencies in [project]: only base packages will be installed"


EXTRAS = """
[project]
name = "The.Project"
dependencies = ["six"]
[project.optional-dependencies]
Deep_Learning = ["torch"]
data = ["polars", "six"]
all = ["the-project[deep-learning, data]", "the_project[all]"]
"""


@pytest.mark.parametrize(
    ("extras", "lines"),
    [
        ([], ("six",)),
        (["deep-learning"], ("six", "torch")),
        (["data", "DEEP.learning", "data"], ("six", "polars", "torch")),
        (["all"], ("six", "polars", "torch")),
    ],
)
def test_extras_that_the_project_wants_are_installed(tree, extras, lines):
    tree.write("app/pyproject.toml", EXTRAS)

    assert tree.find(wanted=Wanted(extras)).lines == lines


GROUPS = """
[project]
dependencies = ["six"]
[dependency-groups]
dev = ["pytest", { include-group = "train" }]
Train = ["torch>=2", {include-group = "com_mon"}, {include-group = "dev"}]
com-mon = ["polars", "six"]
odd = [{ include = "train" }]
"""


@pytest.mark.parametrize(
    "table",
    [
        '[tool.setuptools.dynamic.optional-dependencies]\nPlots = { file = ["plots.txt"] }\n',
        '[tool.setuptools.dynamic]\noptional-dependencies.plots.file = "plots.txt"\n',
        '[tool.hatch.metadata.hooks.requirements_txt.optional-dependencies]\nplots = ["plots.txt"]\n',
    ],
)
def test_dynamic_extras_come_from_the_files_that_the_build_backend_is_told(tree, table):
    export, _ = lock(tree, "six==1.16.0")
    tree.write("app/pyproject.toml", '[project]\ndynamic = ["optional-dependencies"]\n' + table)
    tree.write("app/plots.txt", "rich\n")

    found = tree.find(wanted=Wanted(["plots"]))
    locked = tree.find(export=export, wanted=Wanted(["plots"]))

    assert found.lines == ("rich",)
    assert locked.lines == ("six==1.16.0",)
    assert refused(lambda: tree.find(wanted=Wanted(["more"])))[0].endswith("has no extra 'more' [dependency]")


@pytest.mark.parametrize(
    ("groups", "lines"),
    [
        ([], ("six",)),
        (["common"], None),
        (["com.mon"], ("six", "polars")),
        (["train"], ("six", "torch>=2", "polars", "pytest")),
    ],
)
def test_dependency_groups_that_the_project_wants_are_installed_with_those_that_they_include(tree, groups, lines):
    file = tree.write("app/pyproject.toml", GROUPS)

    if lines is None:
        assert refused(lambda: tree.find(wanted=Wanted(groups=groups))) == [
            f"{file} has no dependency group 'common' [dependency]",
            "why:   'groups' of [tool.kinetic] wants it; [dependency-groups] has dev, Train, com-mon, odd",
            "next:  correct 'groups', or add the group",
        ]
    else:
        assert tree.find(wanted=Wanted(groups=groups)).lines == lines


def test_a_group_that_is_no_list_of_requirements_is_told_where_it_is_wanted(tree):
    tree.write("app/pyproject.toml", GROUPS)

    told = refused(lambda: tree.find(wanted=Wanted(groups=["odd"])))

    assert told[1] == "why:   'odd' of [dependency-groups] is not a list of requirements and groups"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("poetry.lock", " (poetry export -o requirements.txt makes a file that is read)"),
        ("pdm.lock", " (pdm export -o requirements.txt makes a file that is read)"),
        ("pylock.toml", ""),
    ],
)
def test_the_lock_of_another_tool_beside_a_pyproject_is_named_as_unread(tree, name, advice):
    tree.write("app/pyproject.toml", '[project]\ndependencies = ["six"]\n')
    other = tree.write(f"app/{name}", "")

    assert tree.find().notes[1:] == (f"{other} is not read: jobs may get other versions{advice}",)


def test_tables_that_are_wanted_are_not_named_as_unread(tree):
    tree.write(
        "app/pyproject.toml", "[project]\n[project.optional-dependencies]\nx = []\n[dependency-groups]\ny = []\n"
    )

    notes = [
        tree.find(wanted=wanted).notes[1].partition("not read: ")[2]
        for wanted in (Wanted(), Wanted(groups=["y"]), Wanted(["x"], ["y"]))
    ]

    assert notes == ["[dependency-groups], [project.optional-dependencies]", "[project.optional-dependencies]", ""]


def test_an_extra_that_there_is_not_is_refused(tree):
    file = tree.write("app/pyproject.toml", EXTRAS)

    assert refused(lambda: tree.find(wanted=Wanted(["train"]))) == [
        f"{file} has no extra 'train' [dependency]",
        ("why:   'extras' of [tool.kinetic] wants it; [project.optional-dependencies] has Deep_Learning, data, all"),
        "next:  correct 'extras', or add the extra",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[project", "it is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        ("project = 1", "[project] is not a table"),
        ("[project]\ndependencies = 'six'", "'dependencies' of [project] is not a list of strings"),
        ("[project]\ndependencies = [1]", "'dependencies' of [project] is not a list of strings"),
        ("[project]\nrequires-python = 3", "'requires-python' is not a string"),
        ("[project]\noptional-dependencies = 1", "[project.optional-dependencies] is not a table"),
    ],
)
def test_a_malformed_pyproject_is_told(tree, text, why):
    (tree.entry / "pyproject.toml").write_text(text)

    assert refused(tree.find) == [
        f"the dependencies in {tree.entry / 'pyproject.toml'} cannot be read [dependency]",
        f"why:   {why}",
        "next:  correct the file",
    ]


def test_an_option_among_requirements_is_refused_with_its_line(tree):
    file = tree.write("app/pyproject.toml", '[project]\ndependencies = [\n  "--pre",\n]\n')

    what, why, _ = refused(tree.find)

    assert what == f"the dependencies in {file}, line 3, cannot be read [dependency]"
    assert why == "why:   '--pre' is an option of pip and not a requirement"


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://ci:hunter2@host/simple",
        "kinetic-jobs @ git+https://hunter2@host/team/kinetic",
        "jax @ https://host/jax-0.4-py3-none-any.whl?sig=hunter2",
        "x @ file:///srv/x --index-url https://ci:hunter2@host/simple",
    ],
)
def test_the_password_of_an_address_is_in_no_message(tree, line):
    tree.write("app/pyproject.toml", f'[project]\ndependencies = [\n  "{line}",\n]\n')

    try:
        told = "\n".join(tree.find().notes)
    except OptionError as error:
        told = str(error)

    assert "host" in told
    assert "hunter2" not in told


def test_a_path_in_a_pyproject_is_refused_with_its_line(tree):
    file = tree.write("app/pyproject.toml", '[project]\ndependencies = [\n  "x @ file:///srv/x",\n]\n')

    what, _, next_ = refused(tree.find)

    assert what == f"{file}, line 3 cannot be installed in a job: x @ file:///srv/x [dependency]"
    assert "publish it" in next_


def test_a_package_that_uv_takes_from_elsewhere_is_never_taken_from_the_index(tree):
    file = tree.write(
        "app/pyproject.toml",
        """
        [project]
        dependencies = ["My_Lib"]
        [tool.uv.sources]
        my-lib = { path = "../lib" }
        other = { path = "x" }
        """,
    )

    assert refused(tree.find) == [
        f"{file} takes my-lib from a place of its own [dependency]",
        "why:   [tool.uv.sources] names it, and the index may hold another package called my-lib",
        "next:  run uv lock beside a pyproject.toml; or write the address itself: name @ git+https://…",
    ]


def test_a_script_that_takes_a_package_from_elsewhere_is_advised_to_lock_itself(tree):
    block = '# /// script\n# dependencies = ["lib"]\n# [tool.uv.sources]\n# lib = { path = "../lib" }\n# ///\n'
    script = tree.write("app/train.py", block)

    *_, next_ = refused(lambda: tree.find(script=str(script)))

    assert next_ == f"next:  run uv lock --script {script}; or write the address itself: name @ git+https://…"


INDEXES = """
[[tool.uv.index]]
name = "acme"
url = "https://pypi.acme.example/simple/"
explicit = true

[[tool.uv.index]]
url = "https://mirror.example/simple"
default = true

[[tool.uv.index]]
name = "here"
url = "./wheels"

[tool.uv]
override-dependencies = ["six>=1.16"]
find-links = ["./wheels", "https://wheels.example/all.html"]
"""


def settings_of(found):
    """Return the page that uv is given beside the requirements."""
    lines = [line.removeprefix(SETTING) for line in found.lines if line.startswith(SETTING)]
    return tomllib.loads("\n".join(lines))


def test_uv_is_told_the_indexes_of_a_pyproject_and_what_is_taken_from_one_of_them_only(tree):
    tree.write(
        "pyproject.toml",
        '[project]\ndependencies = ["Acme_Models>=2", "six"]\n'
        '[tool.uv.sources]\nacme-models = { index = "acme", marker = "sys_platform == \'linux\'" }\n' + INDEXES,
    )

    found = tree.find()

    assert found.lines[:2] == ("Acme_Models>=2", "six")
    page = settings_of(found)
    assert page["project"]["dependencies"] == ["Acme_Models>=2"]
    assert page["tool"]["uv"] == {
        "index": [
            {"name": "acme", "url": "https://pypi.acme.example/simple/", "explicit": True},
            {"url": "https://mirror.example/simple", "default": True},
        ],
        "sources": {"acme-models": [{"index": "acme", "marker": "sys_platform == 'linux'"}]},
        "override-dependencies": ["six>=1.16"],
        "find-links": ["https://wheels.example/all.html"],
    }


def test_what_a_lock_has_from_an_index_is_looked_for_there_only_and_all_else_never(tree):
    export, _ = lock(tree, "acme-models==2.1 --hash=sha256:ab", "acme-base==1.0 ; sys_platform == 'linux'", "six==1.16")
    tree.write("app/pyproject.toml", '[project]\ndependencies = ["acme-models", "six"]\n' + INDEXES)
    places = {"acme-base": ("1.0", "pypi.acme.example"), "acme-models": ("2.1", "pypi.acme.example")}
    places["six"] = ("1.16", "mirror.example")
    tree.write(
        "app/uv.lock",
        "".join(
            f'[[package]]\nname = "{name}"\nversion = "{at}"\nsource = {{ registry = "https://{host}/simple" }}\n'
            for name, (at, host) in places.items()
        ),
    )

    page = settings_of(tree.find(export=export))

    assert page["project"]["dependencies"] == [
        "acme-models==2.1",
        'acme-base==1.0; sys_platform == "linux"',
        "six==1.16",
    ]
    assert page["tool"]["uv"]["sources"] == {
        "acme-models": [{"index": "acme"}],
        "acme-base": [{"index": "acme", "marker": 'sys_platform == "linux"'}],
        "six": [{"index": "index-1"}],
    }
    assert [index.get("explicit") for index in page["tool"]["uv"]["index"]] == [True, None]


def test_one_version_of_two_indexes_in_a_lock_is_told_apart_by_its_hashes(tree):
    here, there = "a" * 64, "b" * 64
    export, _ = lock(
        tree,
        f"six==1.16 ; sys_platform == 'linux' --hash=sha256:{here}",
        f"six==1.16 ; sys_platform == 'darwin' --hash=sha256:{there}",
    )
    tree.write("app/pyproject.toml", '[project]\ndependencies = ["six"]\n' + INDEXES)
    tree.write(
        "app/uv.lock",
        "".join(
            f'[[package]]\nname = "six"\nversion = "1.16"\nsource = {{ registry = "https://{host}/simple" }}\n'
            f'wheels = [{{ hash = "sha256:{digest}" }}]\n'
            for host, digest in (("mirror.example", here), ("pypi.acme.example", there))
        ),
    )

    page = settings_of(tree.find(export=export))

    assert page["tool"]["uv"]["sources"]["six"] == [
        {"index": "index-1", "marker": 'sys_platform == "linux"'},
        {"index": "acme", "marker": 'sys_platform == "darwin"'},
    ]


def test_what_a_lock_has_from_a_folder_of_wheels_is_sent_and_never_taken_from_the_index(tree, monkeypatch):
    # uv 0.13: [[tool.uv.index]] with `format = "flat"`, or find-links, with a folder; the export has no hash
    monkeypatch.setenv("KINETIC_HOME", str(tree.home / "kinetic"))
    export, _ = lock(tree, "acme-models==2.1 ; sys_platform != 'win32'", "six==1.16 --hash=sha256:ab")
    wheel = made_wheel(tree.entry / "wheels", "acme_models", "2.1", {"acme_models.py": ""})
    tree.write(
        "app/uv.lock",
        '[[package]]\nname = "acme-models"\nversion = "2.1"\nsource = { registry = "wheels" }\nwheels = [\n'
        f'    {{ path = "acme_models-2.1-cp27-cp27m-win32.whl" }},\n    {{ path = "{wheel.name}" }},\n]\n',
    )

    found = tree.find(export=export)

    assert found.lines == ("six==1.16 --hash=sha256:ab",)
    assert [project.rpartition("/")[2] for project in found.projects] == [wheel.stem]


def test_a_folder_that_uv_looks_into_without_a_lock_is_told(tree):
    file = tree.write("pyproject.toml", '[project]\ndependencies = ["six"]\n' + INDEXES)

    assert f"{file} looks for packages in a folder, which jobs do not: ./wheels" in tree.find().notes


@pytest.mark.parametrize("name", ["uv.toml", "pyproject.toml"])
def test_settings_of_uv_beside_a_requirements_file_count_as_for_uv_pip(tree, name):
    tree.write("app/requirements.txt", "six\n")
    is_project = name == "pyproject.toml"
    text = INDEXES if is_project else INDEXES.replace("[tool.uv]\n", "").replace("tool.uv.", "")
    more = '[project]\ndependencies = ["six", "rich"]\n[tool.uv.sources]\nsix = { index = "acme" }\n'
    if not is_project:  # a key below a table would be of that
        text = 'override-dependencies = ["six>=1.16"]\n' + text.partition("override-dependencies")[0]
    tree.write(f"app/{name}", (more if is_project else "") + text)

    found = tree.find()

    told = settings_of(found)["tool"]["uv"]
    assert found.lines[0] == "six"
    assert [index["url"] for index in told["index"]] == [
        "https://pypi.acme.example/simple/",
        "https://mirror.example/simple",
    ]
    assert told["override-dependencies"] == ["six>=1.16"]
    assert "sources" not in told


INDEX_ABOVE = 'constraint-dependencies = ["six<1.16"]\n[[{}index]]\nurl = "https://pypi.acme.example/simple"\n'


@pytest.mark.parametrize("name", ["uv.toml", "pyproject.toml"])
@pytest.mark.parametrize("kind", ["requirements.txt", "pyproject.toml", "script.py", "uv.lock"])
def test_settings_of_uv_in_a_folder_above_count_as_for_uv(tree, name, kind):
    # uv 0.13: of versions, only `uv pip` takes what such a folder chooses
    lines = {
        "requirements.txt": "six\n",
        "pyproject.toml": '[project]\ndependencies = ["six"]\n',
        "script.py": '# /// script\n# dependencies = ["six"]\n# ///\n',
    }
    export = lock(tree, "six==1.15.0", declared='"six"')[0] if kind == "uv.lock" else None
    file = tree.write(f"app/{kind}", lines[kind]) if kind in lines else tree.entry / kind
    table = "[tool.uv]\n" + INDEX_ABOVE.format("tool.uv.") if name == "pyproject.toml" else INDEX_ABOVE.format("")
    tree.write(name, table)

    found = tree.find(script=str(file) if kind == "script.py" else None, export=export)

    told = settings_of(found)["tool"]["uv"]
    assert told["index"][0]["url"] == "https://pypi.acme.example/simple"
    assert ("constraint-dependencies" in told) is (kind == "requirements.txt")


@pytest.mark.parametrize(
    ("between", "text"), [("app/.git/HEAD", ""), ("app/uv.toml", "no-cache = true\n")], ids=["repository", "settings"]
)
def test_settings_of_uv_above_a_repository_or_above_nearer_ones_do_not_count(tree, between, text):
    tree.write("uv.toml", INDEX_ABOVE.format(""))
    tree.write(between, text)
    tree.write("app/requirements.txt", "six\n")

    assert tree.find().lines == ("six",)


def test_a_project_above_that_cannot_be_read_keeps_no_job_from_being_submitted(tree):
    tree.write("pyproject.toml", "[tool.uv\n")
    tree.write("app/requirements.txt", "six\n")

    assert tree.find().lines == ("six",)


@pytest.mark.parametrize(("name", "above"), [("uv.toml", ""), ("pyproject.toml", "tool.uv.")])
def test_settings_of_uv_for_its_pip_commands_count_beside_a_requirements_file_and_come_first(tree, name, above):
    tree.write("app/requirements.txt", "acme-models\n")
    table = 'torch-backend = "auto"\nextra-index-url = ["https://pypi.acme.example/simple"]\nprerelease = "allow"\n'
    other = '[tool.uv]\nprerelease = "never"\n' if above else 'prerelease = "never"\n'
    tree.write(f"app/{name}", f"{other}[{above}pip]\n{table}")

    assert settings_of(tree.find())["tool"]["uv"] == {
        "pip": {"torch-backend": "auto"},
        "extra-index-url": ["https://pypi.acme.example/simple"],
        "prerelease": "allow",
    }


def test_a_date_without_quotes_is_one_for_uv_and_for_jobs(tree):
    tree.write("pyproject.toml", "[tool.uv]\nexclude-newer = 2024-01-01T00:00:00Z\n")

    assert settings_of(tree.find())["tool"]["uv"] == {"exclude-newer": "2024-01-01T00:00:00+00:00"}


@pytest.mark.parametrize("has_lock", [True, False])
def test_what_uv_excludes_a_job_does_not_have_and_files_newer_than_a_date_only_from_a_lock(tree, has_lock):
    dates = {"exclude-newer": "2024-01-01T00:00:00Z", "exclude-newer-package": {"six": "2025-01-01", "idna": False}}
    export, _ = lock(tree, "six==1.16.0")
    tree.write(
        "app/pyproject.toml",
        """
        [project]
        dependencies = ["six"]
        [tool.uv]
        exclude-dependencies = ["jax", "opencv-python"]
        exclude-newer = "2024-01-01T00:00:00Z"
        exclude-newer-package = { six = "2025-01-01", idna = false }
        """,
    )

    found = tree.find(export=export if has_lock else None)

    excluded = {"exclude-dependencies": ["opencv-python"]}
    assert settings_of(found)["tool"]["uv"] == excluded | ({} if has_lock else dates)


@pytest.mark.parametrize("has_lock", [True, False])
def test_beside_a_uv_toml_only_the_sources_and_versions_of_a_pyproject_count_as_for_uv(tree, has_lock):
    # compared with uv 0.13.8, which names what it ignores then
    export, _ = lock(tree, "six==1.16.0", declared='"six"')
    tree.write("app/uv.toml", '[[index]]\nurl = "https://mirror.example/simple"\ndefault = true\n')
    tree.write(
        "app/pyproject.toml",
        """
        [project]
        name = "app"
        dependencies = ["six", "acme-models"]
        [tool.uv]
        prerelease = "allow"
        override-dependencies = ["six>=1.16"]
        find-links = ["https://links.example"]
        sources = { acme-models = { index = "acme" } }
        [[tool.uv.index]]
        url = "https://ignored.example/simple"
        [[tool.uv.index]]
        name = "acme"
        url = "https://pypi.acme.example/simple"
        default = true
        """,
    )

    told = settings_of(tree.find(export=export if has_lock else None))["tool"]["uv"]

    assert [index["url"] for index in told["index"] if not index.get("explicit")] == ["https://mirror.example/simple"]
    assert [index["url"] for index in told["index"] if index.get("explicit")] == ["https://pypi.acme.example/simple"]
    assert told["override-dependencies"] == ["six==1.16.0" if has_lock else "six>=1.16"]
    assert told.keys() <= {"index", "override-dependencies", "sources"}


@pytest.mark.parametrize("has_lock", [True, False])
def test_how_packages_are_fetched_and_built_is_the_same_in_a_job(tree, has_lock):
    export, _ = lock(tree, "six==1.16.0")
    tree.write(
        "app/pyproject.toml",
        """
        [project]
        dependencies = ["six"]
        [tool.uv]
        no-binary-package = ["mpi4py"]
        no-build-isolation-package = ["deepspeed"]
        no-build-package = ["rich"]
        no-build = false
        resolution = "lowest"
        system-certs = true
        keyring-provider = "subprocess"
        [tool.uv.extra-build-dependencies]
        deepspeed = ["numpy"]
        flash-attn = [{ requirement = "torch", match-runtime = true }]
        [tool.uv.extra-build-variables]
        flash-attn = { FLASH_ATTENTION_SKIP_CUDA_BUILD = "TRUE" }
        [[tool.uv.dependency-metadata]]
        name = "flash-attn"
        requires-dist = ["torch", "einops"]
        """,
    )

    found = tree.find(export=export if has_lock else None)

    assert settings_of(found)["tool"]["uv"] == {
        "no-binary-package": ["mpi4py"],
        "no-build-isolation-package": ["deepspeed"],
        "no-build-package": ["rich"],
        "no-build": False,
        "system-certs": True,
        "keyring-provider": "subprocess",
        "extra-build-dependencies": {
            "deepspeed": ["numpy"],
            "flash-attn": [{"requirement": "torch", "match-runtime": True}],
        },
        "extra-build-variables": {"flash-attn": {"FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}},
        "dependency-metadata": [{"name": "flash-attn", "requires-dist": ["torch", "einops"]}],
    }


@pytest.mark.parametrize(
    ("line", "base", "overrides"),
    [
        ("jax", True, ["six>=1.16"]),
        ("jax  # kn:keep", True, ["jax==0.4.30", "six>=1.16"]),
        ("jax", False, ["jax==0.4.30", "six>=1.16"]),
    ],
)
def test_an_override_of_jax_counts_where_the_project_brings_its_own(tree, line, base, overrides):
    given = '[tool.uv]\noverride-dependencies = ["jax==0.4.30", "six>=1.16"]\n'
    tree.write("pyproject.toml", f'[project]\ndependencies = ["six", "{line}"]\n{given}')

    assert settings_of(tree.find(base=base))["tool"]["uv"]["override-dependencies"] == overrides


def test_an_override_that_a_lock_has_for_some_machines_only_counts_for_the_others(tree):
    export, _ = lock(tree, "six==1.16.0 ; sys_platform == 'darwin'", "rich==13.0", declared='"six", "rich"')
    given = '[tool.uv]\noverride-dependencies = ["six>=1.16", "rich", "none-of-it<2"]\n'
    tree.write("app/pyproject.toml", f'[project]\ndependencies = ["six", "rich"]\n{given}')

    told = settings_of(tree.find(export=export))["tool"]["uv"]

    line = 'six==1.16.0; sys_platform == "darwin"'
    assert told == {"override-dependencies": ["six>=1.16", "none-of-it<2", line, "rich==13.0"]}


def test_a_member_of_a_workspace_has_the_indexes_and_overrides_of_its_root(tree):
    export, _ = lock(tree, "six==1.16.0", declared='"six"')
    (tree.entry / "uv.lock").unlink()
    tree.write("app/pyproject.toml", '[project]\nname = "app"\ndependencies = ["six"]\n')
    tree.write("uv.lock", 'version = 1\n\n[manifest]\nmembers = [\n    "app",\n]\n')
    tree.write("pyproject.toml", INDEXES.replace("[tool.uv]\n", '[tool.uv]\nprerelease = "allow"\n'))

    page = settings_of(tree.find(export=export))

    assert page["tool"]["uv"]["override-dependencies"] == ["six==1.16.0"]
    assert page["tool"]["uv"]["prerelease"] == "allow"
    assert len(page["tool"]["uv"]["index"]) == 2


def test_another_project_that_takes_a_package_from_an_index_of_its_own_is_refused(tree):
    tree.write("app/requirements.txt", "-e ../common\n")
    file = tree.write(
        "common/pyproject.toml",
        '[project]\ndependencies = ["acme-models"]\n[tool.uv.sources]\nacme-models = { index = "acme" }\n' + INDEXES,
    )

    assert refused(tree.find)[0] == f"{file} takes acme-models from a place of its own [dependency]"


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ('"^1.2.3"', ["six>=1.2.3,<2"]),
        ('"^0.2.3"', ["six>=0.2.3,<0.3"]),
        ('"^0.0.3"', ["six>=0.0.3,<0.0.4"]),
        ('"^0"', ["six>=0,<1"]),
        ('"^v1.2"', ["six>=1.2,<2"]),
        ('"^1!2.0"', ["six>=1!2.0,<1!3"]),
        ('"~1!2.0"', ["six>=1!2.0,<1!2.1"]),
        ('">=1.2.*"', ["six>=1.2"]),
        ('"!=1.2.*, <2.*"', ["six!=1.2.*,<2"]),
        ('"~1.2.3"', ["six>=1.2.3,<1.3"]),
        ('"~1"', ["six>=1,<2"]),
        ('"~=1.2"', ["six~=1.2"]),
        ('"*"', ["six"]),
        ('"1.2.*"', ["six==1.2.*"]),
        ('"1.16"', ["six==1.16"]),
        ('">= 1.0 <2, !=1.5"', ["six>=1.0,<2,!=1.5"]),
        (
            '{ version = "^1", extras = ["a", "b"], python = "^3.8", markers = "os_name == \'nt\'" }',
            ["""six[a,b]>=1,<2 ; (os_name == 'nt') and python_full_version >= "3.8" and python_full_version < "4\""""],
        ),
        ('{ git = "https://h.example/six.git", rev = "abc" }', ["six @ git+https://h.example/six.git@abc"]),
        ('{ version = "^1", optional = true }', []),
        (
            '[{ version = "1", platform = "linux" }, { version = "2", platform = "darwin" }]',
            ['six==1 ; sys_platform == "linux"', 'six==2 ; sys_platform == "darwin"'],
        ),
        ('{ version = "1", platform = "!=win32" }', ['six==1 ; sys_platform != "win32"']),
        (
            '{ version = "1", platform = "linux|darwin" }',
            ['six==1 ; (sys_platform == "linux" or sys_platform == "darwin")'],
        ),
        ('{ version = "1", python = "3.11" }', ['six==1 ; python_version == "3.11"']),
        ('{ version = "1", python = "3.9.7 || * || ^3.11", platform = "*" }', ["six==1"]),
        (
            '{ version = "1", python = "<3.9 || 3.11", platform = "!= win32" }',
            ['six==1 ; (python_full_version < "3.9" or python_version == "3.11") and sys_platform != "win32"'],
        ),
        ('{ version = "1", platform = "!=a, !=b" }', ['six==1 ; sys_platform != "a" and sys_platform != "b"']),
    ],
)
def test_a_project_of_poetry_1_has_the_packages_that_poetry_would_install(tree, written, lines):
    # compared with poetry-core 2.x by hand: the same versions are allowed
    tree.write(
        "app/pyproject.toml",
        f'[tool.poetry]\nname = "x"\n[tool.poetry.dependencies]\npython = "^3.9"\nsix = {written}\n',
    )

    found = tree.find()

    assert found.lines == tuple(lines)
    assert found.requires_python == ">=3.9,<4"


def test_groups_and_extras_of_poetry_are_installed_if_the_project_wants_them(tree):
    tree.write(
        "app/pyproject.toml",
        """
        [tool.poetry.dependencies]
        jax = "^0.4"  # kn:keep
        Rich = { version = "*", optional = true }
        idna = { version = "*", optional = true }
        [tool.poetry.extras]
        plots = ["rich"]
        [tool.poetry.dev-dependencies]
        pytest = "*"
        [tool.poetry.group.train.dependencies.six]
        version = "^1"
        [dependency-groups]
        more = ["attrs"]
        """,
    )

    plain = tree.find()
    found = tree.find(wanted=Wanted(["Plots"], ["train", "more", "dev"]))

    assert plain.lines == ("jax>=0.4,<0.5",)
    assert set(found.lines) == {"attrs", "jax>=0.4,<0.5", "Rich", "six>=1,<2", "pytest"}
    assert refused(lambda: tree.find(wanted=Wanted(["unknown"])))[0].endswith("has no extra 'unknown' [dependency]")


def test_versions_of_poetry_that_no_requirement_has_are_refused_with_their_line(tree):
    file = tree.write("app/pyproject.toml", '[tool.poetry.dependencies]\nsix = "^1.4 || ^2"\n')

    what, why, _ = refused(tree.find)

    assert what == f"the dependencies in {file}, line 2, cannot be read [dependency]"
    assert why == "why:   six: '^1.4 || ^2' has alternatives, which a requirement cannot have"


def test_another_project_of_poetry_is_sent_and_what_it_needs_is_installed(tree):
    tree.write("app/pyproject.toml", '[tool.poetry.dependencies]\nacme = { path = "../common", develop = true }\n')
    tree.write("common/pyproject.toml", '[tool.poetry]\nname = "acme"\n[tool.poetry.dependencies]\nsix = "^1"\n')

    found = tree.find()

    assert found.lines == ("six>=1,<2",)
    assert [each.rpartition("/")[2] for each in found.projects] == ["common"]


POETRY = """
[tool.poetry.dependencies]
Acme_Models = { path = "../models", develop = true }
acme-base = { git = "git@git.acme.example:acme/base.git", tag = "v2", subdirectory = "python" }
acme-data = { url = "https://files.acme.example/acme_data-1.0-py3-none-any.whl" }
acme-index = { source = "acme" }
six = "^1.16"

[[tool.poetry.source]]
name = "acme"
url = "https://pypi.acme.example/simple"
priority = "explicit"

[[tool.poetry.source]]
name = "PyPI"
"""


def test_what_poetry_takes_from_a_place_of_its_own_is_never_taken_from_the_index(tree):
    # Poetry 2.5: [project] names the package, and [tool.poetry.dependencies] says from where it is
    models = tree.write("models/pyproject.toml", '[project]\nname = "acme-models"\ndependencies = []\n').parent
    tree.write(
        "app/pyproject.toml",
        "[project]\ndependencies = ['acme-models', 'acme-base[fast]; python_version > \"3\"', "
        "'acme-data', 'acme-index (>=1,<2)', 'six']\n" + POETRY,
    )

    found = tree.find()

    assert [line for line in found.lines if not line.startswith(SETTING)] == [
        'acme-base[fast] @ git+ssh://git@git.acme.example/acme/base.git@v2#subdirectory=python ; python_version > "3"',
        "acme-data @ https://files.acme.example/acme_data-1.0-py3-none-any.whl",
        "acme-index (>=1,<2)",
        "six",
    ]
    assert found.projects == (str(models),)
    assert settings_of(found)["tool"]["uv"] == {
        "index": [{"name": "acme", "url": "https://pypi.acme.example/simple", "explicit": True}],
        "sources": {"acme-index": [{"index": "acme"}]},
    }


def test_sources_of_pdm_are_indexes_and_the_one_named_pypi_replaces_the_usual_one(tree):
    # as the documentation of PDM 2.29 has it
    tree.write(
        "pyproject.toml",
        """
        [project]
        dependencies = ["acme-models"]
        [[tool.pdm.source]]
        name = "acme"
        url = "https://pypi.acme.example/simple"
        verify_ssl = true
        [[tool.pdm.source]]
        name = "pypi"
        url = "https://mirror.example/simple"
        """,
    )

    assert settings_of(tree.find())["tool"]["uv"]["index"] == [
        {"name": "acme", "url": "https://pypi.acme.example/simple"},
        {"name": "pypi", "url": "https://mirror.example/simple", "default": True},
    ]


def test_a_source_of_poetry_may_have_any_name_and_is_found_whatever_its_case(tree):
    tree.write(
        "pyproject.toml",
        """
        [project]
        dependencies = ["acme-models"]
        [tool.poetry.dependencies]
        acme-models = { source = "acme pypi" }
        [[tool.poetry.source]]
        name = "Acme PyPI"
        url = "https://pypi.acme.example/simple"
        """,
    )

    assert settings_of(tree.find())["tool"]["uv"] == {
        "index": [{"name": "acme-pypi", "url": "https://pypi.acme.example/simple"}],
        "sources": {"acme-models": [{"index": "acme-pypi"}]},
    }


def test_a_source_of_pdm_may_be_a_page_with_links(tree):
    tree.write(
        "pyproject.toml",
        """
        [project]
        dependencies = ["acme-models"]
        [[tool.pdm.source]]
        name = "acme"
        type = "find_links"
        url = "https://acme.example/wheels.html"
        """,
    )

    assert settings_of(tree.find())["tool"]["uv"] == {"find-links": ["https://acme.example/wheels.html"]}


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("file:///${PROJECT_ROOT}/models", "app/models"),  # of the documentation of PDM 2.29
        ("{root:uri}/models", "app/models"),  # of the documentation of Hatch
        ("{root:parent:uri}/models", "models"),
    ],
)
def test_a_folder_that_a_line_names_from_the_root_of_its_project_is_sent(tree, place, folder):
    models = tree.write(f"{folder}/pyproject.toml", '[project]\nname = "models"\ndependencies = ["six"]\n').parent
    tree.write("app/pyproject.toml", f'[project]\ndependencies = ["models @ {place}"]\n')

    found = tree.find()

    assert (found.lines, found.projects) == (("six",), (str(models),))


def test_kinetic_itself_may_come_from_elsewhere_as_every_job_brings_its_own(tree):
    tree.write(
        "pyproject.toml",
        """
        [project]
        dependencies = ["six", "kinetic-jobs"]
        [tool.uv.sources]
        kinetic-jobs = { git = "https://host/kinetic" }
        """,
    )

    assert tree.find().lines == ("six",)


@pytest.mark.parametrize("line", ["numpy=1.26.4=py311h64a7726_0", "numpy=1.26.4", "numpy = 1.26.4"])
def test_a_line_of_conda_is_refused_before_a_job_waits_for_a_machine(tree, line):
    tree.write("app/requirements.txt", "-r more.txt\n")
    file = tree.write("app/more.txt", f"# platform: linux-64\nsix==1.16\n{line}\n")

    what, why, next_ = refused(tree.find)

    assert what == f"{file}, line 3 cannot be installed in a job: {line} [dependency]"
    assert why == "why:   it is a line of conda, as conda list --export writes it, and not one of pip"
    assert next_ == "next:  write numpy==1.26.4 if the package index has that version"


@pytest.mark.parametrize("line", ["--only-binary=numpy", "--no-binary=psycopg2"])
def test_an_option_of_pip_with_an_equals_sign_is_no_line_of_conda(tree, line):
    tree.write("requirements.txt", f"{line}\nnumpy\n")

    assert tree.find().lines == (line, "numpy")


@pytest.mark.parametrize("base", [True, False])
def test_packages_without_hashes_are_required_to_have_some_only_where_no_base_packages_are_brought(tree, base):
    line = f"six==1.16.0 --hash=sha256:{'0' * 64}"
    tree.write("requirements.txt", f"--require-hashes\n{line}\n")

    found = tree.find(base=base)

    assert found.lines == ((line,) if base else ("--require-hashes", line))
    assert any("base packages have no hashes" in note for note in found.notes) is base


# -------------------------------------------------------------------------------------------------------------- uv.lock


def lock(tree, *lines, declared='"six", "jax"'):
    """Write a project with a lock, and return what stands in for uv and the calls that it got."""
    tree.write(
        "app/pyproject.toml", f"[project]\ndependencies = [{declared}]\n[project.optional-dependencies]\nx = []\n"
    )
    tree.write("app/uv.lock", "version = 1\n")
    calls = []

    def export(folder, extras, groups):
        calls.append((folder, list(extras)))
        return lines

    return export, calls


def made_of(*requirements):
    """Return the text of a uv.lock that was made of requirements, given as it has them."""
    listed = "".join(f"    {{ {each} }},\n" for each in requirements)
    return f'version = 1\n\n[[package]]\nname = "app"\n\n[package.metadata]\nrequires-dist = [\n{listed}]\n'


def test_no_line_of_a_lock_is_parsed_twice(tree, monkeypatch):
    # 400 lines were parsed 11 times each, which took 0.2 s of each submission
    export, _ = lock(tree, "parsed-once==1.16.0", "jax==0.10.2 ; python_version < '3.12'")
    read = Requirement.__init__
    texts = []
    monkeypatch.setattr(Requirement, "__init__", lambda self, text: texts.append(text) or read(self, text))

    tree.find(export=export)

    assert texts.count("parsed-once==1.16.0") == 1


def test_a_lock_beside_a_pyproject_decides_the_versions(tree):
    export, calls = lock(tree, "six==1.16.0", "jax==0.10.2 ; python_version < '3.12'", "jaxlib==0.10.2")

    found = tree.find(wanted=Wanted(["x"]), export=export)

    assert calls == [(tree.entry, ["x"])]
    assert (found.source, found.kind) == (tree.entry / "uv.lock", "lock")
    assert found.lines == ("six==1.16.0",)
    assert found.filtered == ("jax==0.10.2 ; python_version < '3.12'", "jaxlib==0.10.2")
    assert found.notes[0] == f"dependencies come from {tree.entry / 'uv.lock'}"


@pytest.mark.parametrize("members", ['"app", "beta"', '"another"'])
def test_the_lock_of_a_member_is_that_of_its_workspace(tree, members):
    export, calls = lock(tree, "six==1.16.0", declared='"six", "beta"')
    declared = (tree.entry / "pyproject.toml").read_text().replace("[project]", '[project]\nname = "app"')
    tree.write("app/pyproject.toml", declared + "[tool.uv.sources]\nbeta = { workspace = true }\n")
    (tree.entry / "uv.lock").unlink()
    of_app = made_of('name = "six"', 'name = "beta", editable = "beta"').removeprefix("version = 1\n")
    tree.write("uv.lock", f"version = 1\n\n[manifest]\nmembers = [\n    {members},\n]\n{of_app}")

    if "another" in members:
        assert "takes beta from a place of its own" in refused(lambda: tree.find(export=export))[0]
        return
    found = tree.find(export=export)

    assert calls == [(tree.entry, [])]
    assert (found.source, found.lines) == (tree.entry.parent / "uv.lock", ("six==1.16.0",))
    assert found.notes == (f"dependencies come from {found.source}",)


def test_who_keeps_jax_keeps_all_of_the_locked_jax(tree):
    export, _ = lock(tree, "jax==0.10.2", "jaxlib==0.10.2", declared='"jax # kn:keep"')

    found = tree.find(export=export)

    assert (found.lines, found.filtered) == (("jax==0.10.2", "jaxlib==0.10.2"), ())


def test_a_lock_that_was_made_without_a_dependency_or_a_version_is_told(tree):
    export, _ = lock(tree, "six==1.16.0", declared='"six>=1.17", "Roman_Numerals", "idna<4,>=3.0", "rich"')
    tree.write("app/uv.lock", made_of('name = "six", specifier = ">=1"', 'name = "idna", specifier = ">=3,<4"'))

    (note,) = tree.find(export=export).notes[1:]

    assert f"{tree.entry / 'uv.lock'} was made without six>=1.17, Roman_Numerals, rich of" in note


def test_a_lock_that_was_made_from_the_project_is_current_whatever_it_holds(tree):
    # For other machines, overridden, or of a place of its own: uv writes none of it, or without a version.
    wanted = "tomli ; python_version < '3.11'", "gone>=1", "lib>=2", "there @ https://host/there.whl", "kinetic-jobs"
    declared = ", ".join(f'"{each}"' for each in wanted)
    export, _ = lock(tree, declared=declared)
    of_lib = 'name = "lib", editable = "../lib"'
    listed = 'name = "tomli", marker = "python_full_version < \'3.11\'"', 'name = "gone", specifier = ">=1.0"', of_lib
    tree.write("app/uv.lock", made_of(*listed, 'name = "there", url = "https://host/there.whl"'))

    assert not [note for note in tree.find(export=export).notes if "was made without" in note]


@pytest.mark.parametrize("in_project", [True, False])
def test_groups_that_a_lock_was_made_of_are_in_it(tree, in_project):
    export, _ = lock(tree)
    groups = '[dependency-groups]\ntrain = ["optax>1"]\nnew = ["rich"]\n'
    tree.write("app/pyproject.toml", groups + ('[project]\nname = "app"\n' if in_project else ""))
    train = 'train = [{ name = "optax", specifier = ">1" }]'
    without = f'version = 1\n\n[manifest.dependency-groups]\n{train}\n\n[[package]]\nname = "optax"\n'
    tree.write("app/uv.lock", made_of() + f"\n[package.metadata.requires-dev]\n{train}\n" if in_project else without)

    (note,) = tree.find(wanted=Wanted((), ["train", "new"]), export=export).notes[1:]

    assert "was made without rich of" in note


def test_the_lock_of_a_script_is_read_for_the_script(tree):
    export, calls = lock(tree, "six==1.16.0", "lib @ git+https://host/lib@0123")
    script = tree.write("app/train.py", '# /// script\n# dependencies = ["six", "lib", "rich>13"]\n# ///\n')
    script.write_text(script.read_text().replace("# ///\n", '# [tool.uv.sources]\n# lib = { git = "…" }\n# ///\n'))
    listed = '{ name = "six" }, { name = "lib", git = "…" }, { name = "rich", specifier = ">12" }'
    held = tree.write("app/train.py.lock", f"version = 1\n\n[manifest]\nrequirements = [{listed}]\n")

    found = tree.find(script=str(script), export=export)

    assert calls == [(script, [])]
    assert (found.source, found.kind) == (held, "lock")
    assert found.lines == ("six==1.16.0", "lib @ git+https://host/lib@0123")
    assert found.notes == (
        f"dependencies come from {held}",
        f"{held} was made without rich>13 of {script}: bring it up to date with uv lock --script {script}",
    )


def test_options_and_constraints_of_a_file_for_dynamic_dependencies_are_no_packages_that_a_lock_lacks(tree):
    export, _ = lock(tree, "six==1.16.0")
    table = '[tool.setuptools.dynamic]\ndependencies = { file = "main.txt" }\n'
    tree.write("app/pyproject.toml", f'[project]\nname = "app"\ndynamic = ["dependencies"]\n{table}')
    tree.write("app/uv.lock", made_of('name = "six"'))
    tree.write("app/main.txt", "--extra-index-url https://example.org/simple\n-c limits.txt\nsix\n")
    tree.write("app/limits.txt", "idna<4\n")

    assert tree.find(export=export).notes == (f"dependencies come from {tree.entry / 'uv.lock'}",)


def test_a_path_in_a_lock_is_refused(tree):
    export, _ = lock(tree, "-e ./lib")

    what, *_ = refused(lambda: tree.find(export=export))

    assert what == f"{tree.entry / 'uv.lock'} cannot be installed in a job: -e ./lib [dependency]"


@pytest.mark.parametrize(
    "line",
    [
        "-e ../lib",
        "--editable=../lib[fast]",
        "../lib",
        "../lib ; python_version > '3'",
        "lib @ ../lib",
        "lib@file:../lib",
    ],
)
def test_another_project_in_a_lock_is_sent_and_not_installed(tree, line):
    export, _ = lock(tree, line, "six==1.16.0", declared='"six", "lib"')
    tree.write("app/uv.lock", made_of('name = "six"', 'name = "lib", directory = "../lib"'))
    tree.write("lib/pyproject.toml", '[project]\nname = "lib"\ndependencies = ["numpy"]\n')

    found = tree.find(export=export)

    assert found.projects == (str(tree.entry.parent / "lib"),)
    assert found.lines == ("six==1.16.0",)
    assert found.notes == (f"dependencies come from {tree.entry / 'uv.lock'}",)


def test_a_line_with_a_folder_stands_for_what_that_project_needs(tree):
    place = tree.entry.parent / "my lib"
    tree.write("app/requirements.txt", f"six\n-e .\n-e file://{place.as_posix().replace(' ', '%20')}[fast]\n../old\n")
    tree.write("app/pyproject.toml", '[project]\nname = "app"\ndependencies = ["lib", "rich"]\n')
    extra = '[project.optional-dependencies]\nfast = ["numba"]\n[tool.uv.sources]\napp = { workspace = true }\n'
    tree.write("my lib/pyproject.toml", f'[project]\nname = "lib"\ndependencies = ["numpy", "app"]\n{extra}')
    tree.write("old/setup.py", "")

    found = tree.find()

    assert found.lines == ("six", "rich", "numpy", "numba")
    assert found.projects == tuple(str(each) for each in (tree.entry, place, place.parent / "old"))
    assert found.notes[1:] == (
        f"{place.parent}/old is sent, and names no dependencies in [project] of a pyproject.toml",
    )


def test_a_folder_with_kinetic_itself_is_neither_sent_nor_installed(tree):
    tree.write("app/requirements.txt", "six\n-e ../kinetic\n")
    tree.write("kinetic/pyproject.toml", '[project]\nname = "kinetic-jobs"\ndependencies = ["click"]\n')

    found = tree.find()

    assert (found.lines, found.projects) == (("six",), ())


def test_a_lock_knows_where_a_package_of_ones_own_comes_from(tree):
    export, _ = lock(tree, "six @ git+https://host/six@abc")
    with (tree.entry / "pyproject.toml").open("a") as file:
        file.write('[tool.uv.sources]\nsix = { git = "https://host/six" }\n')

    assert tree.find(export=export).lines == ("six @ git+https://host/six@abc",)


def test_a_lock_that_nobody_can_read_is_passed_over_with_a_note(tree):
    lock(tree)

    found = tree.find()

    assert (found.kind, found.lines) == ("pyproject", ("six",))
    assert f"{tree.entry / 'uv.lock'} is not read here" in found.notes


def test_requirements_win_over_a_lock_too(tree):
    export, calls = lock(tree, "six==1")
    tree.write("app/requirements.txt", "idna\n")

    assert tree.find(export=export).lines == ("idna",)
    assert calls == []


# ------------------------------------------------------------------------------------------ metadata on top of a script

SCRIPT = """
#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "six==1.16.0",
#
#   "jax==0.4",  # kn:keep
#   "jaxlib",
# ]
# ///
import six
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_metadata_of_a_script_wins_over_every_file(tree, newline):
    tree.write("app/requirements.txt", "idna\n")
    script = tree.entry / "main.py"
    script.write_bytes(SCRIPT.replace("\n", newline).encode())

    found = tree.find(script=str(script))

    assert (found.source, found.kind) == (script, "script")
    assert (found.lines, found.filtered) == (("six==1.16.0", "jax==0.4"), ("jaxlib",))
    assert found.requires_python == ">=3.11"
    assert found.notes[0] == f"dependencies come from the metadata of {script}"


@pytest.mark.parametrize(
    "text",
    ["import six\n", "# /// script\n", "# /// pyproject\n# dependencies = ['x']\n# ///\n", "'# /// script'\n", ""],
)
def test_a_script_without_metadata_leaves_it_to_the_files(tree, text):
    file = tree.write("app/requirements.txt", "idna\n")
    script = tree.write("app/main.py", text)

    assert tree.find(script=str(script)).source == file


def test_a_script_with_metadata_and_no_dependencies_needs_none(tree):
    tree.write("app/requirements.txt", "idna\n")
    script = tree.write("app/main.py", '# /// script\n# requires-python = ">=3.11"\n# ///')

    assert tree.find(script=str(script)).lines == ()


def test_a_script_in_another_encoding_is_read(tree):
    script = tree.entry / "main.py"
    script.write_bytes(b"# coding: latin-1\n# /// script\n# dependencies = ['six']\n# ///\nname = '\xe9'\n")

    assert tree.find(script=str(script)).lines == ("six",)


def test_the_metadata_of_an_installed_module_is_not_the_users(tree, tmp_path):
    installed = tmp_path / "site-packages" / "theirs.py"
    installed.parent.mkdir()
    installed.write_text(SCRIPT)

    assert tree.find(script=str(installed)).kind == "none"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SCRIPT + SCRIPT, "it has more than one block '# /// script'"),
        ("# /// script\n# dependencies = 'six'\n# ///\n", "'dependencies' is not a list of strings"),
        ("# /// script\n# dependencies = [\n# ///\n", "it is not TOML: Invalid value (at end of document)"),
    ],
)
def test_malformed_metadata_is_told(tree, text, why):
    script = tree.write("app/main.py", text)

    what, second, _ = refused(lambda: tree.find(script=str(script)))

    assert what == f"the dependencies in {script} cannot be read [dependency]"
    assert second == f"why:   {why}"


def test_a_path_in_the_metadata_is_refused_with_the_line_of_the_script(tree):
    script = tree.write("app/main.py", "# /// script\n# dependencies = [\n#   'x @ ./x',\n# ]\n# ///\n")

    assert refused(lambda: tree.find(script=str(script)))[0].startswith(f"{script}, line 3 cannot be installed")


def test_a_function_without_a_file_leaves_it_to_the_files(tree):
    tree.write("app/requirements.txt", "idna\n")

    assert tree.find(script=None).lines == ("idna",)


# ----------------------------------------------------------------------------------------------------------- the result


def test_the_digest_follows_what_is_installed_and_nothing_else(tree):
    def digest(text):
        tree.write("app/requirements.txt", text)
        return tree.find().digest

    plain = digest("six\nidna\n")

    assert digest("# a comment\nsix   # why\n\nidna\n") == plain
    assert digest("six\nidna==3\n") != plain
    assert digest("six\nidna\njax\n") != plain
    assert digest("six\nidna\njax==1\n") == digest("six\nidna\njaxlib\n")  # either way the base brings its own


def test_every_note_is_given_once(tree):
    tree.write("app/requirements.txt", "jax\njax\n")

    notes = tree.find().notes

    assert len(notes) == len(set(notes)) == 2


def test_a_refusal_can_be_caught_as_the_documents_say(tree):
    tree.write("app/requirements.txt", "-e .\n")

    with pytest.raises(ValueError, match=r"line 1 cannot be installed"):
        tree.find()


# ------------------------------------------------------------------------------------------------- our own distribution


@pytest.mark.parametrize(
    "line",
    [
        "kinetic",
        "kinetic-jobs==0.1",
        "Kinetic_Jobs[gke]>=0.1 ; python_version > '3'",
        "kinetic.jobs",
        "kinetic [gke]",
        "kinetic==1 --hash=sha256:ab",
        "kinetic @ https://host/x.whl",
        "kinetic-jobs @ file:///home/me/kinetic",  # as pip freeze writes what came from a clone
        "-e git+https://host/fork.git@1#egg=kinetic_jobs",
        "--editable=git+ssh://git@host/kinetic.git",
        "git+https://host/me/kinetic",
        "git+https://host/me/Kinetic.git@v1",
        "https://host/kinetic_jobs-0.1.0-py3-none-any.whl",
        "https://host/kinetic-0.1.0.tar.gz#sha256=ab",
        "https://host/me/kinetic/archive/main.zip",
        "/home/me/dist/kinetic_jobs-0.1.0-py3-none-any.whl",
    ],
)
def test_our_own_name_is_never_installed(tree, line):
    file = tree.write("requirements.txt", f"six\n{line}\n")

    found = tree.find()

    assert found.lines == ("six",)
    assert found.notes[-1] == f"not installed from {file}, because every job brings its own kinetic: {line}"


@pytest.mark.parametrize(
    "line",
    [
        "kinetic-utils",
        "kineticjobs",
        "my-kinetic==1",
        "git+https://host/kinetic/other.git",
        "https://host/kinetic_utils-1-py3-none-any.whl",
        "https://host/kinetic-utils-1.tar.gz",
        "other @ git+https://host/me/kinetic",
    ],
)
def test_a_name_that_only_resembles_ours_stays(tree, line):
    tree.write("requirements.txt", f"{line}\n")

    assert tree.find().lines == (line,)


def test_what_our_extras_bring_for_jobs_is_installed_without_us(tree):
    tree.write("requirements.txt", "kinetic-jobs[gke, HF]>=0.1 ; python_version > '3'\n")

    assert tree.find().lines == ('datasets>=3 ; python_version > "3"',)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[project]\nname = "p"\nversion = "1"\ndependencies = ["kinetic[gke]", "six"]\n'),
        ("script.py", '# /// script\n# dependencies = ["kinetic[gke]", "six"]\n# ///\n'),
    ],
)
def test_our_own_name_is_taken_off_every_kind_of_list(tree, name, text):
    file = tree.write(name, text)

    found = tree.find(script=str(file) if name == "script.py" else None)

    assert found.lines == ("six",)
    assert f"not installed from {file}, because every job brings its own kinetic: kinetic[gke]" in found.notes


def test_our_own_name_is_taken_off_a_lock(tree):
    tree.write("pyproject.toml", '[project]\ndependencies = ["kinetic-jobs", "six"]\n')
    tree.write("uv.lock", "")

    found = tree.find(
        export=lambda *_: ["kinetic-jobs==0.1 \\", "    --hash=sha256:ab", "six==1 \\", "    --hash=sha256:cd"]
    )

    assert found.lines == ("six==1 --hash=sha256:cd",)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["alpha", "beta>=1,<3", "Gamma_One==1.5", "alpha==1.0 --hash=sha256:0"], []),
        (["beta==1.0"], ["beta==1.0 (has 2.0rc1)"]),
        (["beta>=3", "delta"], ["beta>=3 (has 2.0rc1)", "delta"]),
        (["jax[tpu]", "zeta @ https://example.com/zeta.zip", "--no-index", "never; python_version < '3'"], []),
        (["jax[cpu]", "beta @ https://example.com/beta.zip"], ["jax[cpu]", "beta @ https://example.com/beta.zip"]),
        (["--index-url https://example.com", "git+https://example.com/a"], ["--index-url https://example.com", "git+https://example.com/a"]),
        (["other; python_version < '3'"], ["other; python_version < '3'"]),
        (["alpha", "-c alpha<2", "-c absent==3", "-c beta>=1"], []),
        (["-c alpha>=2"], ["-c alpha>=2 (has 1.0)"]),
        ([f"{SETTING}tool.uv.index = []", f'{SETTING}project.dependencies = ["alpha"]'], []),
        (["epsilon @ git+https://a:secret@h/e", "-i https://h/?token=x"], ["epsilon @ git+https://***@h/e", "-i https://h/?token=***"]),
        ([f'{SETTING}tool.uv.index-url = "https://a:secret@h"', f"{SETTING}tool.x = 1"], ["what its [tool.uv] says"]),
    ],
)  # fmt: skip
def test_lines_that_what_is_installed_satisfies_are_known_by_names_and_versions(lines, left):
    installed = {"alpha": "1.0", "beta": "2.0rc1", "gamma-one": "1.5", "jax": "0.6", "zeta": "1"}
    known = ["jax[tpu]", "zeta @ https://example.com/zeta.zip", "--no-index", "never; python_version < '3'"]
    known += [f"{SETTING}tool.uv.index = []"]

    assert requirements.not_satisfied(lines, known, installed) == left


def test_an_address_of_a_wheel_that_is_not_valid_is_refused_with_its_line(tree):
    file = tree.write("requirements.txt", "numpy\nx @ https://[h.example/x-1-cp311-cp311-linux_x86_64.whl\n")

    what, why, _ = refused(tree.find)

    assert what.startswith(f"{file}, line 2 cannot be installed in a job: x @ https://[h.example/")
    assert why.startswith("why:   its address is not valid: ")
