"""What the walk finds, what it leaves out, and that nothing stops it."""

from __future__ import annotations

import inspect
import os
import shutil
import socket
import sys

import pytest

from kinetic._backends.local.runtime_files import Paths
from kinetic._blobs import file_tree
from kinetic._project import ignore
from kinetic._project.archive import list_project
from kinetic._project.root import Plan
from kinetic.errors import ProjectRootError

APART = "kept apart: data, credentials, or kinetic's own"


def fill(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def walk(root, *lines, **options):
    exclude = options.pop("exclude", ())
    return file_tree.scan(str(root), ignore.Project(str(root), ignore.compile_rules(lines), exclude, **options))


def names(walked):
    return sorted(file.relative for folder in walked.folders for file in folder.files)


def reasons(walked):
    return {left.relative: left.reason for left in walked.left_out}


def test_files_and_folders_are_found_with_their_sizes(tmp_path):
    fill(tmp_path, {"a.py": "1", "pkg/b.py": "22", "pkg/sub/c.py": "333"})

    walked = walk(tmp_path)

    assert names(walked) == ["a.py", "pkg/b.py", "pkg/sub/c.py"]
    assert (walked.files, walked.bytes) == (3, 6)


def test_empty_folders_are_kept(tmp_path):
    (tmp_path / "runs" / "empty").mkdir(parents=True)

    assert [folder.relative for folder in walk(tmp_path).folders] == ["", "runs", "runs/empty"]


def test_the_owner_s_right_to_execute_is_seen(tmp_path):
    fill(tmp_path, {"run.sh": "", "data.txt": ""})
    (tmp_path / "run.sh").chmod(0o755)

    found = {file.relative: file.executable for file in walk(tmp_path).folders[0].files}

    assert found == {"run.sh": True, "data.txt": False}


def test_a_folder_named_dot_kinetic_is_an_ordinary_folder(tmp_path):
    fill(tmp_path, {".kinetic/plan.json": "{}"})

    assert names(walk(tmp_path)) == [".kinetic/plan.json"]


def test_another_home_of_kinetics_in_a_project_stays_with_its_keys(tmp_path):
    home = {"keys/8d9a5415c37f7172": "k", "store/job/result.pkl": "r", "cache/x": "c"}
    fill(tmp_path, {"train.py": "", **{f"runs/home/{path}": text for path, text in home.items()}})

    walked = walk(tmp_path)

    assert names(walked) == ["train.py"]
    assert reasons(walked) == {"runs/home/": APART}


def test_a_runtime_folder_of_another_setting_stays_with_the_keys_of_its_jobs(tmp_path):
    Paths(tmp_path / "scratch" / "kinetic").make()
    fill(tmp_path, {"train.py": "", "scratch/kinetic/jobs/a-job/key": "k", "scratch/kinetic/queue.db": ""})

    walked = walk(tmp_path)

    assert names(walked) == ["train.py"]
    assert reasons(walked) == {"scratch/kinetic/": APART}


@pytest.mark.parametrize("folders", ["keys store cache", "runners supervisors jobs"])
def test_a_package_of_the_users_with_folders_of_such_names_is_sent(tmp_path, folders):
    files = [f"app/{name}/__init__.py" for name in folders.split()]
    fill(tmp_path, dict.fromkeys(files, ""))

    walked = walk(tmp_path)

    assert names(walked) == sorted(files)


@pytest.mark.parametrize("alias", ["a_alias", "z_alias"])
def test_an_alias_never_displaces_the_real_folder_whichever_is_listed_first(tmp_path, alias):
    fill(tmp_path, {"middle/code.py": "1"})
    (tmp_path / alias).symlink_to("middle")

    walked = walk(tmp_path)

    assert names(walked) == sorted([f"{alias}/code.py", "middle/code.py"])
    assert walked.left_out == []


def test_links_that_lead_out_of_the_project_are_skipped_with_one_line(tmp_path):
    fill(tmp_path, {"shared/lib.py": "1", "home/.aws/credentials": "key", "project/a.py": "", "project/b/c.py": ""})
    (tmp_path / "project" / "one").symlink_to(tmp_path / "shared")
    (tmp_path / "project" / "b" / "two").symlink_to("../../shared")
    (tmp_path / "project" / "file.py").symlink_to("../shared/lib.py")
    (tmp_path / "project" / "cloud").symlink_to(tmp_path / "home" / ".aws")
    (tmp_path / "project" / "again").symlink_to("one")

    walked = walk(tmp_path / "project", "!cloud", "!one")

    assert names(walked) == ["a.py", "b/c.py"]
    assert {item.relative for item in walked.left_out if item.origin == "outside"} == {
        "one/", "b/two/", "file.py", "cloud/", "again/",
    }  # fmt: skip
    (note,) = ignore.notes_about(walked, {})
    assert note.startswith("skipped links that lead out of the project: again (a link to ")
    assert note.endswith("or set KINETIC_PACKAGE_ROOT to a folder that contains both")


def test_a_project_that_is_itself_reached_through_a_link_ships(tmp_path):
    fill(tmp_path, {"real/a.py": "", "real/b.py": ""})
    (tmp_path / "real" / "c.py").symlink_to(tmp_path / "real" / "a.py")
    (tmp_path / "project").symlink_to(tmp_path / "real")

    assert names(walk(tmp_path / "project")) == ["a.py", "b.py", "c.py"]


def test_what_lies_in_a_private_place_never_ships_by_whatever_way_it_is_reached(tmp_path):
    fill(tmp_path, {".kinetic/keys/own": "key", ".aws/credentials": "key", "a.py": "", "deep/b.py": ""})
    (tmp_path / "deep" / "keys").symlink_to("../.kinetic/keys")
    (tmp_path / "deep" / "own").symlink_to("../.kinetic/keys/own")
    (tmp_path / "deep" / "cloud").symlink_to("../.aws")
    private = ignore.private_places({"HOME": str(tmp_path)})

    walked = walk(tmp_path, "!.aws", "!own", "!keys", exclude=[str(tmp_path / ".kinetic"), *private])

    assert names(walked) == ["a.py", "deep/b.py"]
    assert {item.reason for item in walked.left_out} == {APART}


def test_credentials_that_variables_name_are_private_too(tmp_path):
    environ = {"HOME": "/home/me", "KUBECONFIG": "/a/one:/a/two", "GOOGLE_APPLICATION_CREDENTIALS": "/b/key.json"}

    assert {"/home/me/.ssh", "/home/me/.aws", "/a/one", "/a/two", "/b/key.json"} <= set(ignore.private_places(environ))


def test_a_link_to_a_folder_that_it_lies_in_is_skipped(tmp_path):
    fill(tmp_path, {"project/pkg/a.py": ""})
    (tmp_path / "project" / "pkg" / "self").symlink_to(".")
    (tmp_path / "project" / "pkg" / "root").symlink_to(tmp_path / "project")
    (tmp_path / "project" / "pkg" / "outside").symlink_to(tmp_path)

    walked = walk(tmp_path / "project")

    assert names(walked) == ["pkg/a.py"]
    assert reasons(walked) == {
        "pkg/self/": "a link to a folder that contains it",
        "pkg/root/": "a link to a folder that contains it",
        "pkg/outside/": f"a link to {tmp_path}",
    }


def test_two_folders_that_link_to_each_other_do_not_go_on_for_ever(tmp_path):
    fill(tmp_path, {"one/a.py": "", "two/b.py": ""})
    (tmp_path / "one" / "two").symlink_to("../two")
    (tmp_path / "two" / "one").symlink_to("../one")

    walked = walk(tmp_path)

    assert names(walked) == ["one/a.py", "one/two/b.py", "two/b.py", "two/one/a.py"]


def test_links_that_multiply_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ignore, "LIMIT_FILES", 1000)
    for depth in range(20):
        (tmp_path / f"level{depth}").mkdir()
        (tmp_path / f"level{depth}" / "file").touch()
        (tmp_path / f"level{depth}" / "left").symlink_to(f"../level{depth + 1}")
        (tmp_path / f"level{depth}" / "right").symlink_to(f"../level{depth + 1}")

    with pytest.raises(ProjectRootError, match="too large to send"):
        walk(tmp_path)


def test_a_linked_file_ships_as_its_content(tmp_path):
    fill(tmp_path, {"real.txt": "content"})
    (tmp_path / "link.txt").symlink_to("real.txt")

    assert {file.relative: file.size for file in walk(tmp_path).folders[0].files} == {"link.txt": 7, "real.txt": 7}


def test_a_link_to_a_secret_is_a_secret_under_whatever_name(tmp_path):
    fill(tmp_path, {".aws/credentials": "key", "a.py": ""})
    (tmp_path / "settings").symlink_to(".aws/credentials")

    assert names(walk(tmp_path)) == ["a.py"]
    assert names(walk(tmp_path, "!settings")) == ["a.py", "settings"]


def test_broken_links_pipes_and_sockets_are_skipped_with_a_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    fill(tmp_path, {"a.py": ""})
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")

        walked = walk(tmp_path)

    assert names(walked) == ["a.py"]
    assert set(reasons(walked)) == {"broken", "loop", "pipe", "socket"}
    assert reasons(walked)["pipe"] == "neither a file nor a folder"
    assert reasons(walked)["broken"].startswith("a broken link")


def test_a_name_that_is_not_text_is_skipped_with_a_reason(tmp_path):
    fill(tmp_path, {"a.py": ""})
    try:
        with open(os.fsencode(tmp_path) + b"/\xe9.py", "wb"):
            pass
        os.mkdir(os.fsencode(tmp_path) + b"/d\xff")
    except OSError:
        pytest.skip("this file system takes valid names only")

    walked = walk(tmp_path)

    assert names(walked) == ["a.py"]
    assert set(reasons(walked).values()) == {"its name is not valid UTF-8"}


def test_a_folder_that_is_gone_when_its_turn_comes_is_skipped_with_a_reason(tmp_path, monkeypatch):
    fill(tmp_path, {"a.py": "", "gone/b.py": ""})
    rules = ignore.compile_rules([])
    decide = rules.folder

    def remove(relative, name):
        shutil.rmtree(tmp_path / relative)
        return decide(relative, name)

    monkeypatch.setattr(rules, "folder", remove)

    walked = file_tree.scan(str(tmp_path), ignore.Project(str(tmp_path), rules, ()))

    assert names(walked) == ["a.py"]
    assert "cannot be listed" in reasons(walked)["gone/"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list everything")
def test_a_folder_without_permission_is_skipped_with_a_reason(tmp_path):
    fill(tmp_path, {"a.py": "", "closed/b.py": ""})
    (tmp_path / "closed").chmod(0)

    walked = walk(tmp_path)
    (tmp_path / "closed").chmod(0o700)

    assert names(walked) == ["a.py"]
    assert "cannot be listed" in reasons(walked)["closed/"]


@pytest.mark.parametrize("sign", ["pyvenv.cfg", "conda-meta/history"])
def test_an_environment_is_recognised_whatever_its_name(tmp_path, sign):
    fill(tmp_path, {"my-env/lib/numpy.py": "", f"my-env/{sign}": "", "env/model.py": ""})

    walked = walk(tmp_path)

    assert names(walked) == ["env/model.py"]
    assert reasons(walked) == {"my-env/": "a virtual environment"}
    assert "my-env/lib/numpy.py" in names(walk(tmp_path, "!my-env/"))


def test_an_environment_ships_when_the_defaults_are_switched_off(tmp_path):
    fill(tmp_path, {"my-env/pyvenv.cfg": ""})

    walked = file_tree.scan(str(tmp_path), ignore.Project(str(tmp_path), ignore.compile_rules([], defaults=False), ()))

    assert names(walked) == ["my-env/pyvenv.cfg"]


def test_data_that_ships_by_itself_stays_out(tmp_path):
    fill(tmp_path, {"data/x.csv": "1", "other/data/y.csv": "2", "model.bin": "3", "a.py": ""})
    (tmp_path / "link").symlink_to("data")

    walked = walk(tmp_path, exclude=[str(tmp_path / "data"), f"{tmp_path}/other/../model.bin"])

    assert names(walked) == ["a.py", "other/data/y.csv"]
    assert reasons(walked) == {"data/": APART, "link": APART, "model.bin": APART}


def test_data_that_is_the_whole_project_does_not_empty_it(tmp_path):
    fill(tmp_path, {"a.py": ""})

    assert names(walk(tmp_path, exclude=[str(tmp_path)])) == ["a.py"]


def test_a_tree_above_two_gigabytes_is_refused_and_its_largest_parts_are_named(tmp_path):
    fill(tmp_path, {"a.py": "", "checkpoints/x.bin": "", "small/y.bin": "y"})
    os.truncate(tmp_path / "checkpoints" / "x.bin", 3 << 30)  # takes no space

    with pytest.raises(ProjectRootError, match="too large to send") as caught:
        walk(tmp_path)

    assert "checkpoints 3.2 GB" in str(caught.value)
    assert ".kineticignore" in str(caught.value)


def test_folders_may_be_deeper_than_the_interpreter_can_recurse(tmp_path):
    depth, frames, limit = 300, len(inspect.stack()), sys.getrecursionlimit()
    for count in range(1, depth + 1):
        os.mkdir(f"{tmp_path}/{'d/' * count}")

    sys.setrecursionlimit(frames + 100)
    try:
        walked = walk(tmp_path)
    finally:
        sys.setrecursionlimit(limit)

    assert len(walked.folders) == depth + 1


def test_a_project_that_cannot_be_listed_at_all_is_an_error(tmp_path):
    with pytest.raises(ProjectRootError, match="cannot be read"):
        walk(tmp_path / "missing")


def test_a_listing_says_for_every_path_whether_it_ships_and_why_not(tmp_path):
    fill(tmp_path, {"a.py": "1", ".env": "KEY=1", ".venv/x": "", "b.csv": "22", ".kineticignore": "*.csv"})
    (tmp_path / "empty").mkdir()

    listing = list_project(Plan(tmp_path, "", None, ("",)), environ={})

    assert {(item.path, item.kept): (item.size, item.reason) for item in listing.entries} == {
        (".env", False): (5, "looks like a secret (.env)"),
        (".kineticignore", True): (5, ""),
        (".venv/", False): (None, "left out by default (.venv/)"),
        ("a.py", True): (1, ""),
        ("b.csv", False): (2, ".kineticignore line 1: *.csv"),
        ("empty/", True): (0, ""),
    }
    assert (listing.files, listing.bytes) == (2, 6)
    assert ".env" in listing.notes[0]
    assert listing.to_json()["entries"][0]["path"] == ".env"


def test_a_listing_says_no_for_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    fill(tmp_path, {"a.py": "1", "secret.txt": "22"})
    (tmp_path / "secret.txt").chmod(0)
    if os.geteuid() == 0:  # root may read all
        monkeypatch.setattr(os, "access", lambda path, mode, **_: bool(os.stat(path).st_mode & 0o400))

    listing = list_project(Plan(tmp_path, "", None, ("",)), environ={})

    assert [(item.path, item.kept, item.reason) for item in listing.entries] == [
        ("a.py", True, ""),
        ("secret.txt", False, "cannot be read"),
    ]
    assert (listing.files, listing.bytes) == (1, 1)


def test_a_listing_of_a_project_that_is_too_large_says_so_instead_of_failing(tmp_path):
    fill(tmp_path, {"x.bin": ""})
    os.truncate(tmp_path / "x.bin", 3 << 30)

    listing = list_project(Plan(tmp_path, "", None, ("",)), environ={})

    assert "too large to send" in listing.problem
    assert listing.entries[0].size == 3 << 30
