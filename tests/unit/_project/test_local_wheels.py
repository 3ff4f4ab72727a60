"""Wheels of this machine that a line names: what is sent for them, what they need, and which are rejected."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest
from servers.wheels import made_wheel

from kinetic._project import dependencies
from kinetic._project.root import Plan
from kinetic.errors import OptionError

NEEDS = "numpy>=2\nProvides-Extra: fast\nRequires-Dist: numba; (sys_platform != 'aix') and extra == 'fast'"
PYTHON = f"cp{sys.version_info[0]}{sys.version_info[1]}"


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "app" / "wheels").mkdir(parents=True)
    return tmp_path / "app"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def found(project: Path, *lines: str) -> dependencies.Dependencies:
    (project / "requirements.txt").write_text("\n".join(["six", *lines, ""]))
    return dependencies.find(Plan(project, "", None, ("",)))


def sent(found: dependencies.Dependencies) -> dict[str, str]:
    """Return the files that are sent, by where the job imports them."""
    (folder,) = found.projects
    files = (path for path in Path(folder, "src").rglob("*") if path.is_file() and ".dist-info" not in path.parts[-2])
    return {str(path.relative_to(Path(folder, "src"))): path.read_text() for path in files}


def refused(project: Path, line: str) -> list[str]:
    with pytest.raises(OptionError) as caught:
        found(project, line)
    return str(caught.value).splitlines()


def test_a_wheel_is_sent_with_what_an_installer_would_put_beside_the_packages(project, home) -> None:
    inside = {
        "lib/__init__.py": "x = 1",
        "lib/tool": "#!",
        "lib/cacert.pem": "public",
        "lib-1.data/purelib/more.py": "y",
    }
    file = made_wheel(project / "wheels", "lib", "1", inside | {"lib-1.data/scripts/lib": "#!"}, needs=NEEDS)

    told = found(project, "./wheels/lib-1-py3-none-any.whl[fast]")

    assert sent(told) == {"lib/__init__.py": "x = 1", "lib/tool": "#!", "lib/cacert.pem": "public", "more.py": "y"}
    assert told.lines[:2] == ("six", "numpy>=2")
    assert [line.partition(";")[0] for line in told.lines[2:]] == ["numba"]
    assert "extra" not in told.lines[2]
    assert told.projects[0].startswith(f"{home}/cache/unpacked/{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}/")
    assert dependencies.name_of(told.projects[0]) == "lib"


def test_extras_count_only_where_the_line_names_them(project) -> None:
    made_wheel(project / "wheels", "lib", "1", {"lib.py": ""}, needs=NEEDS)

    for line in ("wheels/lib-1-py3-none-any.whl", f"lib @ file://{project}/wheels/lib-1-py3-none-any.whl"):
        assert found(project, line).lines == ("six", "numpy>=2")
    assert len(found(project, f"lib[fast] @ file://{project}/wheels/lib-1-py3-none-any.whl").lines) == 3


def test_what_a_wheel_marks_as_a_program_stays_one(project) -> None:

    file = made_wheel(project / "wheels", "lib", "1", {"lib.py": ""})
    with zipfile.ZipFile(file, "a") as archive:
        about = zipfile.ZipInfo("lib/bin/tool")
        about.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(about, "#!/bin/sh\n")

    (folder,) = found(project, "wheels/lib-1-py3-none-any.whl").projects

    assert os.access(f"{folder}/src/lib/bin/tool", os.X_OK)
    assert not os.access(f"{folder}/src/lib.py", os.X_OK)


def test_a_wheel_that_is_built_again_is_sent_as_it_is_now(project) -> None:
    made_wheel(project / "wheels", "lib", "1", {"lib.py": "old"})
    first = found(project, "wheels/lib-1-py3-none-any.whl")
    made_wheel(project / "wheels", "lib", "1", {"lib.py": "new"})

    second = found(project, "wheels/lib-1-py3-none-any.whl")

    assert [sent(first)["lib.py"], sent(second)["lib.py"]] == ["old", "new"]


def test_what_a_killed_process_left_half_unpacked_is_not_used(project, home) -> None:
    file = made_wheel(project / "wheels", "lib", "1", {"lib.py": "whole"})
    place = home / "cache" / "unpacked" / hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    half = place.with_name(f"{place.name}.0a1b2c3d") / "lib-1-py3-none-any" / "src"
    half.mkdir(parents=True)

    assert sent(found(project, "wheels/lib-1-py3-none-any.whl")) == {"lib.py": "whole"}


@pytest.mark.parametrize("tag", [f"{PYTHON}-{PYTHON}-manylinux_2_17_x86_64", f"{PYTHON}-abi3-manylinux_2_17_aarch64"])
def test_a_compiled_wheel_for_this_python_on_linux_is_sent(project, tag) -> None:
    made_wheel(project / "wheels", "lib", "1", {"lib/core.so": ""}, tag=tag)

    assert sent(found(project, f"wheels/lib-1-{tag}.whl")) == {"lib/core.so": ""}


@pytest.mark.parametrize("tag", ["cp38-cp38-manylinux_2_17_x86_64", f"{PYTHON}-{PYTHON}-win_amd64"])
def test_a_wheel_that_no_job_could_import_is_rejected(project, tag) -> None:
    made_wheel(project / "wheels", "lib", "1", {"lib/core.so": ""}, tag=tag)

    what, why, next_ = refused(project, f"wheels/lib-1-{tag}.whl")

    assert what.startswith(f"{project}/requirements.txt, line 2 cannot be installed in a job: wheels/lib-1-{tag}.whl")
    assert why.startswith(f"why:   it is for {tag}, and jobs have")
    assert "-none-any.whl" in next_


def test_a_line_for_other_machines_is_passed_over_with_its_wheel(project) -> None:
    tag = f"{PYTHON}-{PYTHON}-win_amd64"
    made_wheel(project / "wheels", "lib", "1", {"lib/core.so": ""}, tag=tag)

    told = found(project, f"wheels/lib-1-{tag}.whl ; sys_platform == 'win32'")

    assert (told.lines, told.projects) == (("six",), ())


def test_a_file_with_another_hash_than_the_line_names_is_rejected(project) -> None:
    file = made_wheel(project / "wheels", "lib", "1", {"lib.py": ""})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    assert found(project, f"wheels/{file.name} \\\n  --hash=sha256:{digest}").projects
    _, why, _ = refused(project, f"wheels/{file.name} --hash=sha256:{'0' * 64}")
    assert why == f"why:   its hash is another one: {digest}"


def test_the_hash_behind_an_address_counts_as_pip_freeze_writes_it(project) -> None:
    file = made_wheel(project / "wheels", "lib", "1", {"lib.py": ""})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    assert found(project, f"lib @ file://{file}#sha256={digest}").projects
    _, why, _ = refused(project, f"lib @ file://{file}#sha256={'0' * 64}")
    assert why == f"why:   its hash is another one: {digest}"


def test_a_wheel_that_another_one_names_is_sent_as_well_and_each_once(project) -> None:
    lib = made_wheel(project / "wheels", "lib", "1", {"lib.py": ""}, needs=NEEDS)
    made_wheel(project / "wheels", "top", "1", {"top.py": ""}, needs=f"lib[fast] @ file://{lib}")

    told = found(project, "./wheels/top-1-py3-none-any.whl", "wheels/top-1-py3-none-any.whl", "wheels/" + lib.name)

    assert [dependencies.name_of(folder) for folder in told.projects] == ["top", "lib"]
    assert [line.partition(";")[0] for line in told.lines] == ["six", "numpy>=2", "numba"]


def test_what_is_sent_is_not_installed_from_an_index_as_well(project) -> None:
    made_wheel(project / "wheels", "lib", "1", {"lib.py": ""})

    told = found(project, "lib>=1", "wheels/lib-1-py3-none-any.whl", "numpy")

    assert told.lines == ("six", "numpy")


def test_an_extra_that_a_wheel_does_not_have_is_noted_and_does_no_harm(project) -> None:
    made_wheel(project / "wheels", "lib", "1", {"lib.py": ""}, needs=NEEDS)

    told = found(project, "wheels/lib-1-py3-none-any.whl[fast,nope]")

    assert len(told.lines) == 3
    assert told.notes[-1] == f"{told.projects[0]} has no extra nope, which a line wants"


def test_a_marker_that_is_none_is_rejected_with_its_line(project) -> None:
    made_wheel(project / "wheels", "lib", "1", {"lib.py": ""})

    what, why, _ = refused(project, "wheels/lib-1-py3-none-any.whl ; nonsense")

    assert what.startswith(f"{project}/requirements.txt, line 2 cannot be installed in a job")
    assert why.startswith("why:   what is behind its semicolon is not a marker: ")


def test_a_file_with_another_hash_is_not_even_unpacked(project, home) -> None:
    file = made_wheel(project / "wheels", "lib", "1", {"lib.py": ""})

    refused(project, f"wheels/{file.name} --hash=sha256:{'0' * 64}")

    assert not (home / "cache" / "unpacked").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 but no more", b"<html>not found</html>"])
def test_a_file_that_is_not_a_wheel_is_rejected_and_leaves_nothing(project, home, data) -> None:
    (project / "wheels" / "lib-1-py3-none-any.whl").write_bytes(data)

    _, why, next_ = refused(project, "wheels/lib-1-py3-none-any.whl")

    assert why.startswith("why:   it is not a wheel: ")
    assert next_ == "next:  build it again"
    assert [*(home / "cache" / "unpacked").iterdir()] == []


def test_a_file_in_a_wheel_cannot_be_written_outside_of_its_folder(project, home) -> None:
    made_wheel(project / "wheels", "lib", "1", {"../../../../evil.py": "evil", "/evil.py": "evil", "lib.py": ""})

    told = found(project, "wheels/lib-1-py3-none-any.whl")

    (folder,) = told.projects
    assert {path.relative_to(folder).parts[0] for path in Path(folder).rglob("evil.py")} == {"src"}
    assert [path for path in home.rglob("evil.py") if not path.is_relative_to(folder)] == []
    assert not (project / "evil.py").exists()


def test_a_path_without_a_file_and_an_archive_of_sources_say_what_to_do(project) -> None:
    assert "the file is not there" in refused(project, "wheels/lib-1-py3-none-any.whl")[2]
    assert "uv build --wheel" in refused(project, "wheels/lib-1.tar.gz")[2]
    assert "./wheels/NAME.whl" in refused(project, "--find-links ./wheels")[2]


@pytest.mark.parametrize("option", ["--find-links ./wheels", "--index-url ./simple", "--extra-index-url=./simple"])
def test_an_option_with_a_folder_is_refused_also_beside_a_pyproject_toml(project, option) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "1"\ndependencies = ["roman"]\n')

    assert refused(project, f"{option}\nlib==1")[0].endswith(f"cannot be installed in a job: {option} [dependency]")


def test_a_wheel_in_the_constraints_is_to_be_named_in_the_requirements(project) -> None:
    file = made_wheel(project / "wheels", "lib", "1", {"lib.py": ""})
    (project / "constraints.txt").write_text(f"lib @ file://{file}\n")

    what, _, next_ = refused(project, "-c constraints.txt")

    assert what.startswith(f"{project}/constraints.txt, line 1 cannot be installed in a job: lib @ ")
    assert next_ == "next:  take it out of the constraints; a wheel that is to be used is named in the requirements"


def test_a_wheel_of_kinetic_is_neither_sent_nor_installed(project) -> None:
    made_wheel(project / "wheels", "kinetic_jobs", "9", {"kinetic/__init__.py": ""})

    told = found(project, "wheels/kinetic_jobs-9-py3-none-any.whl")

    assert (told.lines, told.projects) == (("six",), ())
    assert "because every job brings its own kinetic" in told.notes[-1]
