"""The folders on this machine: which lasts, and which belongs to one host."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic._config.home import ensure_home, file_system, is_local, kinetic_home, machine_id, path_of, runtime_folder
from kinetic.errors import SettingsError

TABLE = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /home rw - autofs systemd-1 rw,fd=50
24 23 0:22 / /home rw,relatime shared:5 master:2 - nfs4 server:/export/home rw,vers=4.2
25 24 0:23 / /home/me/local\\040disk rw - xfs /dev/sdb1 rw
26 22 0:24 / /scratch rw - lustre 10.0.0.1@tcp:/fs rw
27 22 0:25 / /mnt/bucket rw - fuse.sshfs me@there: rw
28 22 0:26 / /mnt/stick rw - fuseblk /dev/sdc1 rw
not a line of this table
"""


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def mounts_with(folder, kind, tmp_path):
    """Write a table of mounts in which a folder lies on a file system of some kind."""
    table = tmp_path / "mountinfo"
    table.write_text(
        f"1 1 0:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:2 / {os.path.realpath(folder)} rw - {kind} somewhere rw\n"
    )
    return table


# The home.


def test_the_home_is_a_hidden_folder_of_the_user():
    assert kinetic_home({"HOME": "/home/me"}) == Path("/home/me/.kinetic")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("/srv/kinetic", "/srv/kinetic"),
        ("/srv/x/../kinetic/", "/srv/kinetic"),
        ("~/jobs", "/home/me/jobs"),
        ("~", "/home/me"),
        ("", "/home/me/.kinetic"),
    ],
)
def test_the_home_can_be_put_elsewhere(written, meant):
    assert kinetic_home({"HOME": "/home/me", "KINETIC_HOME": written}) == Path(meant)


def test_a_relative_home_is_made_absolute_at_once():
    assert kinetic_home({"HOME": "/home/me", "KINETIC_HOME": "here"}) == Path.cwd() / "here"


def test_the_home_of_another_user_can_be_written_with_a_tilde():
    assert path_of("~root/x", {"HOME": "/home/me"}) == Path(os.path.expanduser("~root/x"))


def test_looking_for_the_home_makes_nothing(tmp_path):
    environ = {"KINETIC_HOME": str(tmp_path / "home"), "KINETIC_MACHINE_ID": "here"}

    kinetic_home(environ)
    runtime_folder(environ)

    assert list(tmp_path.iterdir()) == []


def test_the_home_is_made_for_its_owner_only(tmp_path):
    home = ensure_home({"KINETIC_HOME": str(tmp_path / "a" / "home")})

    assert home.is_dir()
    assert mode_of(home) == 0o700


def test_a_home_that_exists_is_left_as_it_is(tmp_path):
    (tmp_path / "home").mkdir(mode=0o750)

    ensure_home({"KINETIC_HOME": str(tmp_path / "home")})

    assert mode_of(tmp_path / "home") == 0o750


def test_a_file_in_the_place_of_the_home_is_told(tmp_path):
    (tmp_path / "home").write_text("")

    with pytest.raises(SettingsError) as caught:
        ensure_home({"KINETIC_HOME": str(tmp_path / "home")})

    assert str(caught.value).splitlines() == [
        f"the kinetic home {tmp_path / 'home'} is not a folder [settings]",
        "why:   it is a file, or below a file",
        "next:  set KINETIC_HOME to a folder that you can write to",
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user that the system does not know")
def test_a_user_without_a_home_folder_is_told():
    code = (
        "import os; os.environ.pop('HOME', None)\n"
        "from kinetic._config.home import kinetic_home\n"
        "os.setuid(54321)\n"
        "try: kinetic_home({})\n"
        "except Exception as error: print(error)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == [
        "no home folder is known for this user [settings]",
        "why:   HOME is unset, and the system has no entry for user 54321",
        "next:  set KINETIC_HOME to a folder that you can write to",
    ]


# The machine.


def test_the_machine_has_the_same_short_id_each_time():
    first = machine_id({})

    assert first == machine_id({})
    assert len(first) == 12
    assert set(first) <= set("0123456789abcdef")


@pytest.mark.skipif(os.uname().sysname == "Darwin", reason="the hardware itself has an id there")
def test_two_machines_of_the_same_name_differ_by_the_id_of_their_system(tmp_path):
    (tmp_path / "one").write_text("b08dfa6083e7567a1921a715000001fb\n")
    (tmp_path / "two").write_text("c18dfa6083e7567a1921a715000001fb\n")

    ids = {machine_id({}, machine_file=tmp_path / name) for name in ("one", "two", "absent")}

    assert len(ids) == 3


def test_a_runtime_folder_of_its_own_counts_as_another_machine_and_the_usual_one_by_its_name_does_not(tmp_path):
    home = {"KINETIC_HOME": str(tmp_path)}
    usual = machine_id(home)

    assert machine_id(home | {"KINETIC_RUNTIME_DIR": str(tmp_path / "run" / usual)}) == usual
    others = {machine_id(home | {"KINETIC_RUNTIME_DIR": str(tmp_path / name)}) for name in ("one", "two")}
    assert len(others | {usual}) == 3


def test_the_id_of_the_machine_can_be_chosen():
    assert machine_id({"KINETIC_MACHINE_ID": "login-1.cluster_a"}) == "login-1.cluster_a"


@pytest.mark.parametrize("written", ["a/b", "..", ".hidden", "a b", "-", "ä", "x" * 65])
def test_an_id_that_cannot_be_a_folder_is_refused(written):
    with pytest.raises(SettingsError) as caught:
        machine_id({"KINETIC_MACHINE_ID": written})

    assert str(caught.value).splitlines() == [
        f"KINETIC_MACHINE_ID={written!r} cannot name this machine [settings]",
        (
            "why:   it becomes the name of a folder: letters, digits, '-', '_' and '.', not '.' in front, "
            "and at most 64 characters"
        ),
        "next:  unset KINETIC_MACHINE_ID, or set it to a plain word such as this host's name",
    ]


# The file system.


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/var/tmp", "ext4"),
        ("/home/me/.kinetic", "nfs4"),
        ("/home", "nfs4"),
        ("/homestead", "ext4"),
        ("/home/me/local disk/x", "xfs"),
        ("/scratch/me", "lustre"),
        ("/mnt/bucket/a", "fuse.sshfs"),
        ("/mnt/stick/a", "fuseblk"),
    ],
)
def test_the_longest_and_latest_mount_says_what_a_folder_lies_on(path, kind):
    assert file_system(path, TABLE) == kind


def test_an_empty_table_says_nothing():
    assert file_system("/home", "") == ""


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "fuseblk", "ecryptfs"])
def test_a_file_system_of_this_host_is_local(kind, tmp_path):
    assert is_local(tmp_path / "home", mounts=mounts_with(tmp_path, kind, tmp_path))


NETWORKS = ["nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "smbfs", "afs", "ceph", "orangefs", "panfs"]
HYPERVISORS = ["9p", "vboxsf", "virtiofs"]
PROGRAMS = ["autofs", "fuse", "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.gcsfuse"]


@pytest.mark.parametrize("kind", [*NETWORKS, *HYPERVISORS, *PROGRAMS])
def test_a_file_system_that_others_can_write_is_not_local(kind, tmp_path):
    assert not is_local(tmp_path / "home", mounts=mounts_with(tmp_path, kind, tmp_path))


def test_a_link_to_a_shared_folder_is_not_local(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "shared")

    assert not is_local(tmp_path / "home", mounts=mounts_with(tmp_path / "shared", "nfs4", tmp_path))


def test_without_a_table_of_mounts_every_folder_counts_as_local(tmp_path):
    assert is_local(tmp_path, mounts=tmp_path / "absent")


# The runtime folder.


def test_what_belongs_to_this_host_lies_in_a_local_home(tmp_path):
    environ = {"KINETIC_HOME": str(tmp_path), "KINETIC_MACHINE_ID": "here"}

    folder = runtime_folder(environ, mounts=tmp_path / "absent")

    assert folder == tmp_path / "run" / "here"


def test_the_runtime_folder_can_be_chosen(tmp_path):
    environ = {"HOME": str(tmp_path), "KINETIC_RUNTIME_DIR": "~/fast"}

    assert runtime_folder(environ) == tmp_path / "fast"


def shared_home(tmp_path, name="home"):
    """Return environment and arguments for a home that lies on NFS."""
    home, elsewhere = tmp_path / name, tmp_path / "local"
    home.mkdir(exist_ok=True)
    elsewhere.mkdir(exist_ok=True)
    environ = {"KINETIC_HOME": str(home), "KINETIC_MACHINE_ID": "here"}
    return environ, {"mounts": mounts_with(home, "nfs4", tmp_path), "elsewhere": elsewhere}


def test_a_shared_home_gets_a_private_folder_on_a_local_disk(tmp_path):
    environ, places = shared_home(tmp_path)

    folder = runtime_folder(environ, **places)

    assert folder.name == "here"
    assert folder.parent.parent == tmp_path / "local"
    assert folder.parent.name.startswith(f"kinetic-{os.getuid()}-")
    assert mode_of(folder.parent) == 0o700
    assert runtime_folder(environ, **places) == folder


def test_two_shared_homes_of_one_user_do_not_meet(tmp_path):
    environ, places = shared_home(tmp_path, "home")
    first = runtime_folder(environ, **places)
    environ, places = shared_home(tmp_path, "other")

    second = runtime_folder(environ, **places)

    assert first.parent != second.parent


def refusal(environ, places):
    with pytest.raises(SettingsError) as caught:
        runtime_folder(environ, **places)
    first, why, advice = str(caught.value).splitlines()
    assert first.startswith("the folder /")
    assert first.endswith(" for running jobs cannot be used [settings]")
    assert why.endswith("; it is used because the home is on a shared file system")
    assert advice == "next:  set KINETIC_RUNTIME_DIR to a folder of your own on a local disk"
    return why


def test_a_folder_that_lets_others_in_is_refused(tmp_path):
    environ, places = shared_home(tmp_path)
    runtime_folder(environ, **places).parent.chmod(0o755)

    assert "its mode 0755 lets other users in; 0700 is needed" in refusal(environ, places)


def test_a_planted_link_is_refused(tmp_path):
    environ, places = shared_home(tmp_path)
    folder = runtime_folder(environ, **places).parent
    folder.rmdir()
    (tmp_path / "trap").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "trap")

    assert "it is a link and not a folder" in refusal(environ, places)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of somebody else")
def test_a_folder_of_somebody_else_is_refused(tmp_path):
    environ, places = shared_home(tmp_path)
    os.chown(runtime_folder(environ, **places).parent, 12345, -1)

    assert "it belongs to user 12345, and you are user 0" in refusal(environ, places)


def test_a_missing_local_disk_is_told(tmp_path):
    environ, places = shared_home(tmp_path)
    (tmp_path / "local").rmdir()

    assert "FileNotFoundError: No such file or directory" in refusal(environ, places)
