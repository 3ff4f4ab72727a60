"""What a job asks of a cluster besides hardware: an image, what is installed into it, and how much of a machine."""

from __future__ import annotations

import base64
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import CancelledError
from types import SimpleNamespace

import pytest

from kinetic._config import profiles
from kinetic._config.cluster import ClusterSettings, PodRequirements
from kinetic._config.options import ResourceRequests
from kinetic._hardware import place
from kinetic._images import bundled, container_registry, uv
from kinetic._jobs import option_sources, pod_requirements
from kinetic._jobs.job_options import Options
from kinetic._output import terminal as output
from kinetic._project.root import Plan
from kinetic._stores.files import FileStore
from kinetic._version import __version__
from kinetic._wire import digests, keys, python_runtime
from kinetic._wire.order import INLINE_BYTES, Artifact
from kinetic.errors import ImageBuildError, ImageUnavailableError, OptionError, SettingsError

PYTHON = ".".join(map(str, sys.version_info[:2]))


class Project:
    """A project with a home, a store, and a cluster that it goes to."""

    def __init__(self, folder):
        self.home = folder / "home"
        self.root = folder / "home" / "project"
        self.root.mkdir(parents=True)
        self.store = FileStore(folder / "store")
        self.environ = {
            "HOME": str(self.home),
            "KINETIC_HOME": str(folder / "kinetic"),
            "KINETIC_STORE": self.store.url,  # what a profile for a kubeconfig context cannot do without
        }

    def write(self, name, text):
        path = self.root / name
        path.write_text(textwrap.dedent(text))
        return path

    def asked(self, accelerator="cpu", **more):
        return self.begin(accelerator, **more).result()

    def begin(self, accelerator="cpu", *, function=print, settings=None, **options):
        profile = profiles.choose(self.environ).profile
        given = Options.checked(accelerator=accelerator, spot=False, **options)
        return pod_requirements.requirements_of(
            function,
            Plan(self.root, "", None, ("",)),
            option_sources.applied(given, self.root, profile, self.environ),
            place(accelerator),
            store=self.store,
            settings=settings or ClusterSettings(),
            profile=profile,
            environ=self.environ,
        )

    def lines(self, asked):
        """Read what would be installed, as the pod does."""
        if asked.requirements is None:
            return None
        artifact = Artifact(**asked.requirements)
        if artifact.inline:
            return artifact.unwrap("it").decode().splitlines()
        data = self.store.get(artifact.key)
        artifact.verify(digests.of_bytes(data), "it")
        return data.decode().splitlines()

    def function(self, text, monkeypatch):
        """Make a module with a function, and return the function."""
        file = self.write("pod_script.py", text)
        spec = importlib.util.spec_from_file_location("pod_script", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "pod_script", module)
        spec.loader.exec_module(module)
        return module.train


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """Collect what the user is told; each test begins as a new process would."""
    lines = []
    monkeypatch.setattr(output, "report_once", lines.append)
    monkeypatch.setattr(output, "warn_once", functools.cache(lambda text: lines.append(f"warning: {text}")))
    return lines


# The image.


def test_without_a_word_a_job_starts_from_the_clients_python_and_installs_what_the_project_names(project, told):
    file = project.write("requirements.txt", "numpy==2.0\nrich\n")

    asked = project.asked()

    assert (asked.image, asked.python) == (f"python:{PYTHON}-slim", PYTHON)
    assert project.lines(asked) == ["numpy==2.0", "rich", "jax", "keras"]
    assert len(told) == 1
    assert f"python:{PYTHON}-slim" in told[0]
    assert f"dependencies come from {file}" in told[0]
    assert told[0].endswith("; base packages: jax, keras")


def test_what_came_out_can_be_kept_as_json(project):
    project.write("requirements.txt", "rich\n")
    (project.root / "pyproject.toml").write_text("[tool.kinetic]\nresources = { cpu = 4 }\n")
    asked = project.asked(settings=ClusterSettings(queue="gold"))

    assert PodRequirements.from_json(asked.to_json()) == asked
    assert asked.settings.queue == "gold"


@pytest.mark.parametrize(("accelerator", "jax"), [("cpu", "jax"), ("gpu-l4", "jax[cuda12]"), ("tpu-v5e-1", "jax[tpu]")])
def test_a_project_that_names_nothing_finds_jax_for_its_hardware_and_keras(project, told, accelerator, jax):
    assert project.lines(project.asked(accelerator)) == [jax, "keras"]
    assert len(told) == 1
    assert "only base packages will be installed" in told[0]
    assert told[0].endswith(f"; base packages: {jax}, keras")


@pytest.mark.parametrize("where", ["project", "profile", "variable"])
def test_a_project_that_wants_no_base_packages_gets_exactly_what_it_names(project, told, where):
    file = project.write("requirements.txt", "jax==0.4\nrich\n")
    if where == "project":
        project.write("pyproject.toml", "[tool.kinetic]\nbase_packages = false\n")
    elif where == "profile":
        home = project.root.parents[1] / "kinetic"
        home.mkdir()
        (home / "profiles.json").write_text(
            '{"current": "c", "profiles": {"c": {"context": "c", "options": {"base_packages": false}}}}'
        )
    else:
        project.environ["KINETIC_BASE_PACKAGES"] = "0"

    assert project.lines(project.asked("tpu-v5e-1")) == ["jax==0.4", "rich"]
    assert told[0].endswith("; base packages: none, as base_packages = false says")
    assert len(told) == 1
    assert str(file) in told[0]


def test_a_project_that_names_nothing_and_wants_no_base_packages_installs_nothing(project, told):
    project.environ["KINETIC_BASE_PACKAGES"] = "no"

    assert project.asked("tpu-v5e-1").requirements is None
    assert "nothing will be installed" in told[0]


def test_keras_that_a_project_pins_is_the_one_that_is_installed(project, told):
    project.write("requirements.txt", "Keras==3.11\n")

    assert project.lines(project.asked()) == ["Keras==3.11", "jax"]
    assert told[0].endswith("; base packages: jax")


def test_a_custom_image_gets_nothing_and_one_line_says_what_it_must_hold(project, told):
    file = project.write("requirements.txt", "jax\nrich\n")

    asked = project.asked(container_image="ghcr.io/team/train:1")

    assert (asked.image, asked.requirements) == ("ghcr.io/team/train:1", None)
    assert told == [
        f"nothing is installed into the image ghcr.io/team/train:1: it must hold the dependencies in {file}"
    ]


def test_a_custom_image_with_a_project_that_needs_nothing_is_not_worth_a_line(project, told):
    project.asked(container_image="ghcr.io/team/train:1")

    assert told == []


def test_what_could_not_be_installed_stops_nobody_who_brings_an_image(project, told):
    project.write("requirements.txt", "-e ./library\n")

    asked = project.asked(container_image="ghcr.io/team/train:1")

    assert asked.requirements is None
    assert "it must hold the project's dependencies" in told[0]


def test_prebuilt_images_lie_where_the_argument_or_the_variable_says(project):
    project.environ["KINETIC_BASE_IMAGE_REPO"] = "ghcr.io/all"

    assert project.asked(container_image="prebuilt").image == f"ghcr.io/all/base-cpu:{__version__}"
    mine = project.asked("gpu-l4", container_image="prebuilt", base_image_repo="ghcr.io/mine")
    assert mine.image == f"ghcr.io/mine/base-gpu:{__version__}"


def test_a_word_that_is_no_image_is_refused_before_anything_is_read(project):
    project.write("requirements.txt", "-e ./library\n")

    with pytest.raises(OptionError, match="looks like a misspelled 'prebuilt'"):
        project.asked(container_image="prebuild")


def test_a_registry_that_cannot_be_written_leaves_a_job_that_asked_for_no_image_to_install_at_start(
    project, told, monkeypatch
):
    monkeypatch.setattr(container_registry, "_LONGEST_WAIT", 0.0)
    project.write("requirements.txt", "rich\n")
    project.environ["KINETIC_BASE_IMAGE"] = "127.0.0.1:1/python:3"
    settings = ClusterSettings(image_repo="127.0.0.1:1/team/jobs")

    asked = project.asked(settings=settings)

    assert asked.image == f"python:{PYTHON}-slim"
    assert project.lines(asked) == ["rich", "jax", "keras"]
    assert [text for text in told if text.startswith("no image is built: ")] == [told[-1]]
    with pytest.raises(ImageUnavailableError) as caught:
        project.asked(settings=settings, container_image="bundled")
    assert caught.value.next


def test_a_bundled_job_without_a_repository_starts_in_pythons_own_image(project):
    (project.root / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "1"\n')
    project.environ["KINETIC_BASE_PACKAGES"] = "0"

    asked = project.asked(container_image="bundled")

    assert asked.image == f"python:{PYTHON}-slim"
    assert asked.requirements is None


def slow_image(project, monkeypatch, *, work):
    """Begin to ask for an image whose build is `work`."""

    def ensure(request, *_, waits, **__):
        assert waits
        return work(request.stop)

    monkeypatch.setattr(bundled, "ensure", ensure)
    project.write("requirements.txt", "rich\n")
    return project.begin(settings=ClusterSettings(image_repo="h.example/team/jobs"))


@pytest.mark.parametrize(
    ("accelerator", "selector", "machine"),
    [
        ("cpu", None, "x86_64"),
        ("cpu", {"kubernetes.io/arch": "arm64"}, "aarch64"),
        ("gpu-l4", {"kubernetes.io/arch": "arm64", "pool": "a"}, "aarch64"),
        ("gpu-gb200", {"pool": "a"}, "aarch64"),
        ("gpu-gb200", {"kubernetes.io/arch": "amd64"}, "x86_64"),
    ],
)
def test_an_image_is_built_for_the_processor_of_the_nodes_that_are_selected(
    project, monkeypatch, accelerator, selector, machine
):
    def ensure(request, *_, **__):
        return SimpleNamespace(uri=f"h.example/jobs:{request.machine}", lock_key="data/locks/a")

    monkeypatch.setattr(bundled, "ensure", ensure)
    project.write("requirements.txt", "rich\n")
    settings = ClusterSettings(image_repo="h.example/jobs", node_selector=selector)

    assert project.asked(accelerator, settings=settings).image == f"h.example/jobs:{machine}"


def test_an_image_is_built_while_the_caller_packs(project, monkeypatch):
    packed = threading.Event()

    def work(_):
        assert packed.wait(10)  # it can only end because the caller came this far meanwhile
        return SimpleNamespace(uri="h.example/team/jobs@sha256:0", lock_key="data/locks/a")

    unfinished = slow_image(project, monkeypatch, work=work)
    unfinished.check()
    packed.set()

    assert unfinished.result().image == "h.example/team/jobs@sha256:0"
    assert unfinished.result().lock == "data/locks/a"


def test_an_image_that_fails_ends_the_packing_with_its_own_error(project, monkeypatch):
    def work(_):
        raise ImageBuildError("no solution", code="no-solution")

    unfinished = slow_image(project, monkeypatch, work=work)
    unfinished._thread.join()

    with pytest.raises(ImageBuildError, match="no solution"):
        unfinished.check()


def test_packing_that_fails_ends_the_build_with_one_line(project, monkeypatch, capsys):
    ended = threading.Event()

    def work(stop):
        while True:
            try:
                stop.check()
            except CancelledError:
                ended.set()
                raise
            time.sleep(0.01)

    unfinished = slow_image(project, monkeypatch, work=work)
    unfinished.give_up()

    assert ended.wait(10)
    assert capsys.readouterr().err.count("the next submission continues from there") == 1


def test_a_builder_elsewhere_begins_when_the_job_is_packed(project, monkeypatch):
    begun = []
    remote = SimpleNamespace(where="a pod", builds_sources=True, build=lambda _, waits: begun.append(waits))

    def work(_):
        [after] = unfinished.after_packing(lambda: [remote])()
        after.build(None, waits=True)
        return SimpleNamespace(uri="u", lock_key="k")

    holder = []

    def late(stop):
        while not holder:
            time.sleep(0.01)
        return work(stop)

    unfinished = slow_image(project, monkeypatch, work=late)
    holder.append(unfinished)
    assert begun == []

    unfinished.result()

    assert begun == [True]


# JAX.


@pytest.mark.parametrize(
    ("accelerator", "native"), [("cpu", "jax"), ("gpu-l4", "jax[cuda12]"), ("tpu-v5e-1", "jax[tpu]")]
)
def test_the_projects_jax_becomes_that_of_the_hardware(project, accelerator, native):
    project.write("requirements.txt", "jax[cpu]==0.4\nrich\njaxlib\n")

    assert project.lines(project.asked(accelerator)) == ["rich", native, "keras"]


def test_a_prebuilt_image_has_its_own_jax(project):
    project.write("requirements.txt", "jax\nrich\n")

    assert project.lines(project.asked("tpu-v5e-1", container_image="prebuilt")) == ["rich"]


def test_a_project_that_needs_only_jax_needs_nothing_more_in_a_prebuilt_image(project):
    project.write("requirements.txt", "jax\n")

    assert project.asked("tpu-v5e-1", container_image="prebuilt").requirements is None
    assert project.lines(project.asked("tpu-v5e-1")) == ["jax[tpu]", "keras"]


def test_jax_that_is_kept_stays_as_it_is(project):
    project.write("requirements.txt", "jax==0.4.30  # kn:keep\n")

    assert project.lines(project.asked("gpu-l4")) == ["jax==0.4.30", "keras"]


# Lines.


def test_a_requirement_over_several_lines_arrives_whole(project):
    project.write(
        "requirements.txt",
        """\
        --index-url https://packages.example.com/simple
        rich==13.0 ; python_version >= "3.8" \\
            --hash=sha256:aa \\
            --hash=sha256:bb
        httpx[http2] @ https://example.com/httpx.whl
        """,
    )

    assert project.lines(project.asked()) == [
        "--index-url https://packages.example.com/simple",
        'rich==13.0 ; python_version >= "3.8" --hash=sha256:aa --hash=sha256:bb',
        "httpx[http2] @ https://example.com/httpx.whl",
        "jax",
        "keras",
    ]


def test_a_short_list_travels_with_the_job_and_a_long_one_lies_in_the_store_once(project):
    project.write("requirements.txt", "rich\n")
    short = project.asked()
    project.write("requirements.txt", "".join(f"package-with-a-long-name-{number}==1.0\n" for number in range(600)))
    before = {entry.key for entry in project.store.entries("")}

    long, again = project.asked(), project.asked()

    assert base64.b64decode(short.requirements["inline"]) == b"rich\njax\nkeras\n"
    assert before == set()
    assert long == again
    assert long.requirements["size"] > INLINE_BYTES
    assert long.requirements["key"] == keys.requirements(long.requirements["sha256"])
    assert [entry.key for entry in project.store.entries("")] == [long.requirements["key"]]
    assert project.lines(long)[-3:] == ["package-with-a-long-name-599==1.0", "jax", "keras"]


def test_the_place_of_a_long_list_is_taken_for_no_job(project):
    assert keys.requirements("ab").partition("/")[0] in keys.RESERVED


def test_a_long_list_that_is_there_already_is_made_young_again(project):
    project.write("requirements.txt", "".join(f"package-with-a-long-name-{number}==1.0\n" for number in range(600)))
    key = project.asked().requirements["key"]
    os.utime(project.store.root / key, (1, 1))

    project.asked()

    assert project.store.entry(key).modified > 1


def test_a_long_list_that_a_bucket_deletes_at_the_wrong_moment_is_written_again(project, monkeypatch):
    project.write("requirements.txt", "".join(f"package-with-a-long-name-{number}==1.0\n" for number in range(600)))
    key = project.asked().requirements["key"]
    touch = project.store.touch

    def deleted(key):
        project.store.delete(key)
        return touch(key)

    monkeypatch.setattr(project.store, "touch", deleted)

    project.asked()

    assert project.store.size(key)


# What is refused.


@pytest.mark.parametrize("line", ["-e .", "./library", "library @ file:///opt/library", "-r other.txt"])
def test_what_only_this_machine_has_is_refused(project, line):
    file = project.write("requirements.txt", f"rich\n{line}\n")

    with pytest.raises(OptionError) as caught:
        project.asked()

    assert caught.value.code == "dependency"
    assert f"{file}, line 2" in caught.value.what


def test_a_project_that_wants_another_python_is_refused(project):
    project.write("pyproject.toml", '[project]\nname = "x"\nrequires-python = "<3"\ndependencies = ["rich"]\n')

    with pytest.raises(OptionError, match="wants Python <3"):
        project.asked()


# Where it is found.


def test_a_script_says_itself_what_it_needs(project, monkeypatch):
    project.write("requirements.txt", "rich\n")
    function = project.function(
        """\
        # /// script
        # dependencies = ["httpx"]
        # ///
        def train():
            pass
        """,
        monkeypatch,
    )

    assert project.lines(project.asked(function=function)) == ["httpx", "jax", "keras"]


def test_extras_of_the_project_are_installed_too(project):
    project.write(
        "pyproject.toml",
        """\
        [project]
        name = "x"
        version = "1"
        dependencies = ["rich"]
        [project.optional-dependencies]
        cluster = ["httpx"]
        [tool.kinetic]
        extras = ["cluster"]
        """,
    )

    assert project.lines(project.asked()) == ["rich", "httpx", "jax", "keras"]


LOCK = """\
version = 1
requires-python = ">=3.11"

[[package]]
name = "x"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "rich" }]

[package.metadata]
requires-dist = [{ name = "rich" }]

[[package]]
name = "rich"
version = "13.7.1"
source = { registry = "https://example.com/simple" }
"""
LOCKED = '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["rich"]\n'


@pytest.mark.skipif(shutil.which("uv") is None and importlib.util.find_spec("uv") is None, reason="there is no uv here")
def test_the_versions_of_a_lock_are_installed(project):
    project.write("pyproject.toml", LOCKED)
    project.write("uv.lock", LOCK)

    assert project.lines(project.asked()) == ["rich==13.7.1", "jax", "keras"]


def test_a_lock_is_exported_again_only_after_a_change(project, monkeypatch):
    project.write("pyproject.toml", LOCKED)
    project.write("uv.lock", LOCK)
    monkeypatch.setattr(python_runtime, "find_installer", lambda: sys.executable)  # only its stamp counts
    exported = []
    monkeypatch.setattr(uv, "export_lock", lambda *given: exported.append(given) or [f"rich=={len(exported)}"])

    first, again = (project.lines(project.asked()) for _ in range(2))
    project.write("uv.lock", f"{LOCK}\n")
    changed = project.lines(project.asked())
    project.environ["UV_INDEX"] = "https://packages.example.com/simple"
    elsewhere = project.lines(project.asked())

    assert [lines[0] for lines in (first, again, changed, elsewhere)] == ["rich==1", "rich==1", "rich==2", "rich==3"]


def test_lines_of_a_lock_with_a_password_are_not_kept_on_this_machine(project, monkeypatch):
    project.write("pyproject.toml", LOCKED)
    project.write("uv.lock", LOCK)
    monkeypatch.setattr(python_runtime, "find_installer", lambda: sys.executable)
    monkeypatch.setattr(uv, "export_lock", lambda *_: ["rich @ https://mia:hunter2@packages.example.com/rich.whl"])

    project.asked()

    files = [file for file in (project.root.parents[1] / "kinetic").rglob("*") if file.is_file()]
    assert not any(b"hunter2" in file.read_bytes() for file in files)


def test_a_lock_that_nobody_here_can_read_is_an_error_with_a_way_out(project, monkeypatch):
    project.write("pyproject.toml", LOCKED)
    project.write("uv.lock", LOCK)
    monkeypatch.setattr(python_runtime, "find_installer", lambda: None)

    with pytest.raises(ImageBuildError) as caught:
        project.asked()

    assert f"the lock of {project.root} cannot be read without uv" in caught.value.what
    assert caught.value.next == "pip install uv"


# What the user is told.


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://mia:hunter2@packages.example.com/simple",
        "--extra-index-url=https://hunter2@packages.example.com/simple",
        "library @ git+https://mia:hunter2@example.com/library",
        "library @ git+https://mia:p@hunter2@example.com/library",
        "library @ https://example.com/library-1-py3-none-any.whl?sp=r&sig=hunter2",
        'library @ https://example.com/library-1-py3-none-any.whl?private_token=hunter2 ; python_version > "3"',
    ],
)
def test_a_password_in_an_address_passes_and_is_told_once_and_not_shown(project, told, line):
    project.write("requirements.txt", f"{line}\nrich\n")

    asked, _ = project.asked(), project.asked()

    assert project.lines(asked)[0] == line
    secrets = [text for text in told if "password or token" in text]
    assert len(secrets) == 1
    assert secrets[0].startswith("warning: ")
    assert "hunter2" not in "\n".join(told)


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://packages.example.com/simple",
        "--index-url https://mia:${TOKEN}@packages.example.com/simple",
        "--index-url https://${TOKEN}@packages.example.com/simple",
        "library @ git+ssh://git@example.com/library",
        "library @ https://example.com/library-1-py3-none-any.whl?sp=r&sig=${SIGNATURE}",
    ],
)
def test_an_address_without_a_secret_is_not_worth_a_warning(project, told, line):
    project.write("requirements.txt", f"{line}\nrich\n")

    project.asked()

    assert not any("password or token" in text for text in told)


def test_what_needs_git_is_told_before_the_job_waits_for_its_machine(project, told):
    project.write("requirements.txt", "library @ git+https://example.com/library\n")

    project.asked()
    project.asked(container_image="prebuilt")

    told_of_git = [text for text in told if "has no git" in text]
    assert len(told_of_git) == 1
    assert f"python:{PYTHON}-slim has no git" in told_of_git[0]


def test_an_index_that_only_the_client_is_told_is_named_before_pods_look_elsewhere(project, told):
    project.write("requirements.txt", "acme-models==2.1\n")
    project.environ["UV_INDEX"] = "acme=https://pypi.acme.example/simple"

    project.asked()
    named = [text for text in told if "pypi.acme.example" in text]
    project.asked(capture_env_vars=["UV_INDEX"])
    project.asked(settings=ClusterSettings(config_maps=("packages",)))

    assert [text for text in told if "pypi.acme.example" in text] == named
    assert named[0].startswith("uv uses https://pypi.acme.example/simple (UV_INDEX) here, and pods")


# How much of a machine.


def test_resources_of_the_project_become_needs(project):
    project.write("pyproject.toml", '[tool.kinetic]\nresources = { cpu = "500m", memory = "16Gi", shm = "8Gi" }\n')

    assert project.asked().needs == ResourceRequests(cpu=0.5, memory_bytes=16 * 1024**3, shm_bytes=8 * 1024**3)


def test_resources_of_the_profile_that_holds_win(project):
    project.write("pyproject.toml", "[tool.kinetic]\nresources = { cpu = 1 }\n")
    home = project.root.parents[1] / "kinetic"
    home.mkdir()
    (home / "profiles.json").write_text(
        '{"current": "big", "profiles": {"big": {"context": "c", "options": {"resources": {"cpu": 8}}}}}'
    )

    assert project.asked().needs == ResourceRequests(cpu=8)


def test_who_asks_for_nothing_gets_what_the_hardware_gets(project):
    assert project.asked().needs == ResourceRequests()


def test_resources_that_cannot_be_read_are_refused(project):
    project.write("pyproject.toml", '[tool.kinetic]\nresources = { memory = "plenty" }\n')

    with pytest.raises(SettingsError, match="memory"):
        project.asked()


# The way into the pod.


def test_the_pod_reads_the_lines_that_were_found_here(project, tmp_path):
    """Let the pod's own code install from the file, with an installer that notes what it was given."""
    project.write("requirements.txt", "rich==13.0 \\\n  --hash=sha256:aa\n")
    asked = project.asked()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text(f'#!/bin/sh\ncp "$6" {tmp_path}/seen\n')
    (tools / "uv").chmod(0o755)
    program = f"""
import pathlib
from kinetic._runner.pod import install as requiring
from kinetic._stores.files import FileStore
store = FileStore({str(tmp_path / "store")!r})
requiring.install_requirements(store, {asked.requirements!r}, pathlib.Path({str(tmp_path)!r}))
"""

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": f"{tools}:/usr/bin:/bin", "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == "rich==13.0 --hash=sha256:aa\njax\nkeras\n"
