"""Locks by the real uv, against an index of this test."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import platform
import re
import ssl
import subprocess
import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import CancelledError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cluster.certificates import Authority
from servers.wheels import Index, made_wheel

from kinetic._images import lock, uv, wheels
from kinetic._images.lock import Lock, Platform
from kinetic._images.wheels import find_login, with_indexes
from kinetic._project import dependencies
from kinetic._project.root import Plan
from kinetic._wire.python_runtime import SETTING, TRUST
from kinetic.errors import AccessDeniedError, ImageBuildError

PYTHON = ".".join(platform.python_version_tuple()[:2])
HERE = Platform(PYTHON, "x86_64", "2_36")
ANY = "py3-none-any"


@pytest.fixture
def publish(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a wheel into the index that uv asks."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.simple)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("UV_INDEX_URL", raising=False)

    def make(name: str, version: str, tag: str = ANY, needs: str = "") -> None:
        index(made_wheel(tmp_path / "index", name, version, {f"{name}.py": ""}, tag=tag, needs=needs))

    return make


def resolved(*lines: str, where: Platform = HERE, **more: Any) -> Lock:
    return lock.resolve(lines, where, lambda _: None, **more)


def versions(found: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in found.wheels}


def test_a_lock_has_one_wheel_with_its_hash_for_each_package(publish, index) -> None:
    publish("alpha", "1.0", needs="beta>=2")
    publish("beta", "1.0")
    publish("beta", "2.1")

    found = resolved("alpha")

    assert versions(found) == {"alpha": "1.0", "beta": "2.1"}
    assert all(len(wheel.sha256) == 64 and wheel.url.startswith("http://127.0.0.1") for wheel in found.wheels)
    assert lock.read(HERE, found.text) == found


def test_a_wheel_for_a_newer_glibc_than_the_base_has_is_not_taken(publish) -> None:
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    publish("alpha", "2.0", tag="py3-none-manylinux_2_31_x86_64")
    publish("alpha", "3.0", tag="py3-none-manylinux_2_39_x86_64")

    assert versions(resolved("alpha")) == {"alpha": "2.0"}
    assert versions(resolved("alpha", where=Platform(PYTHON, "x86_64", "2_40"))) == {"alpha": "3.0"}


def test_a_lock_for_arm_takes_wheels_for_arm(publish) -> None:
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_aarch64")

    [wheel] = resolved("alpha", where=Platform(PYTHON, "aarch64", "2_36")).wheels

    assert wheel.filename.endswith("aarch64.whl")


def test_a_change_of_one_line_keeps_the_versions_of_all_others(publish) -> None:
    publish("alpha", "1.0")
    publish("beta", "1.0")
    before = resolved("alpha")
    publish("alpha", "2.0")

    assert versions(resolved("alpha", "beta", before=before.text)) == {"alpha": "1.0", "beta": "1.0"}
    assert versions(resolved("alpha", "beta")) == {"alpha": "2.0", "beta": "1.0"}


def test_a_constraint_limits_what_another_package_brings_and_brings_nothing_itself(publish) -> None:
    publish("alpha", "1.0", needs="beta")
    publish("beta", "1.0")
    publish("beta", "2.0")
    publish("gamma", "1.0")

    assert versions(resolved("alpha", "-c beta<2", "-c gamma==1.0")) == {"alpha": "1.0", "beta": "1.0"}

    with pytest.raises(ImageBuildError, match="have no solution") as caught:
        resolved("alpha", "-c beta>=7")

    assert "beta>=7" in str(caught.value).partition("next:")[2]


def test_the_gpu_of_this_machine_decides_nothing_for_another_one(publish, index, monkeypatch) -> None:
    # uv 0.13: "auto" takes torch from PyTorch's index for CPUs, or for the CUDA of this machine
    publish("torch", "2.9.0")
    monkeypatch.setenv("UV_TORCH_BACKEND", "auto")
    settings = [
        f"{SETTING}project.name = 'x'",
        f"{SETTING}project.version = '0'",
        f"{SETTING}project.dependencies = []",
    ]

    found = resolved("torch", *settings, f'{SETTING}tool.uv.pip.torch-backend = "auto"')

    assert versions(found) == {"torch": "2.9.0"}
    assert found.wheels[0].url.startswith(index.simple.removesuffix("simple"))


def test_a_variable_for_the_build_of_pytorch_decides_nothing_where_a_lock_names_the_file(
    publish, tmp_path, monkeypatch
) -> None:
    # uv 0.13: "uv lock" and "uv sync" pass over it, and "uv pip" asks PyTorch's index
    publish("torch", "2.9.0")
    monkeypatch.setenv("UV_TORCH_BACKEND", "cpu")
    [file] = (tmp_path / "index").glob("torch-*")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()

    assert versions(resolved(f"torch==2.9.0 --hash=sha256:{digest}")) == {"torch": "2.9.0"}


def test_a_build_of_pytorch_that_no_index_has_is_told_with_its_own_index(publish) -> None:
    publish("torch", "2.9.0")

    with pytest.raises(ImageBuildError, match="have no solution") as caught:
        resolved("torch==2.9.0+cu128")
    with pytest.raises(ImageBuildError, match="have no solution") as other:
        resolved("torch==3.0.0")

    advice = "; +cu128 is on an index of its own: --extra-index-url https://download.pytorch.org/whl/cu128"
    assert str(caught.value).endswith(f"torch==2.9.0+cu128{advice}")
    assert "index" not in str(other.value.next)


def test_constraints_of_lines_and_of_a_variable_count_both(publish, tmp_path, monkeypatch) -> None:
    for version in ("1.0", "2.0", "3.0"):
        publish("alpha", version)
        publish("beta", version)
    (tmp_path / "mine.txt").write_text("alpha<2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CONSTRAINT", "mine.txt")

    found = resolved("alpha", "beta", "-c beta<3")

    assert versions(found) == {"alpha": "1.0", "beta": "2.0"}


def test_a_package_with_an_index_of_its_own_comes_from_there_and_its_login_is_found(
    publish, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("ours", "9.9")
    publish("old", "1.0", needs="new<2")
    publish("new", "3.0")
    monkeypatch.setenv("UV_INDEX_ACME_USERNAME", "ci")
    monkeypatch.setenv("UV_INDEX_ACME_PASSWORD", "secret-word")
    monkeypatch.setenv("UV_NO_SOURCES", "1")  # of a user for whom a project's own lock has decided about sources
    acme = Index()
    acme.login = ("ci", "secret-word")
    acme(made_wheel(tmp_path / "acme", "ours", "1.0", {"ours.py": ""}))
    settings = [
        'project.name = "x"',
        'project.version = "0"',
        'project.dependencies = ["ours"]',
        f'tool.uv.index = [{{name = "acme", url = "{acme.simple}", explicit = true}}]',
        'tool.uv.sources.ours = [{index = "acme"}]',
        'tool.uv.override-dependencies = ["new==3.0"]',
    ]
    lines = ["ours", "old", *(f"{SETTING}{line}" for line in settings)]

    try:
        found = resolved(*lines)
    finally:
        acme.close()

    assert versions(found) == {"new": "3.0", "old": "1.0", "ours": "1.0"}
    assert "secret-word" not in found.text
    assert lock.indexes(lines, {}) == [f"acme={acme.simple}"]
    [ours] = [wheel for wheel in found.wheels if wheel.name == "ours"]
    assert find_login(ours.url, with_indexes(os.environ, lock.indexes(lines, {}))) == ("ci", "secret-word")


PROJECT = """
[project]
name = "app"
version = "0"
requires-python = ">=3.11"
dependencies = ["old", "new", "more[of-it]"]
[tool.uv]
override-dependencies = ["new>=2"]
[[tool.uv.index]]
name = "acme"
url = "{}"
[tool.uv.sources]
new = {{ index = "{}" }}
"""


@pytest.mark.parametrize("is_on_an_index_of_its_own", [False, True])
def test_what_is_overridden_has_the_version_and_the_index_that_the_lock_of_the_project_has(
    is_on_an_index_of_its_own, publish, index: Index, tmp_path: Path
) -> None:
    acme = Index()

    def publish_new(version: str) -> None:
        if is_on_an_index_of_its_own:
            acme(made_wheel(tmp_path / "acme", "new", version, {"new.py": ""}))
        else:
            publish("new", version)

    publish("old", "1.0", needs="new<2")
    index(made_wheel(tmp_path / "index", "more", "1.0", {}, needs="new<2 ; extra == 'of-it'\nProvides-Extra: of-it"))
    publish_new("2.0")
    url, name = (acme.simple, "acme") if is_on_an_index_of_its_own else (index.simple, "usual")
    text = PROJECT.format(url, name).replace('name = "acme"', f'name = "{name}"')
    (tmp_path / "pyproject.toml").write_text(text if is_on_an_index_of_its_own else text.partition("[[")[0])
    with contextlib.closing(acme):
        subprocess.run([*uv.uv_command(), "lock", "--no-cache"], cwd=tmp_path, check=True)
        publish_new("3.0")
        found = dependencies.find(Plan(tmp_path, "", "", ()), export=uv.export_lock, base=False)

        assert versions(resolved(*found.lines)) == {"old": "1.0", "new": "2.0", "more": "1.0"}


def test_a_file_of_which_an_index_names_md5_only_has_a_sha256_in_the_lock(
    publish, index: Index, tmp_path: Path
) -> None:
    # as pypiserver with --hash-algo md5, its default until 2.0, and older repositories of Nexus
    index.algorithm = "md5"
    publish("alpha", "1.0", needs="beta")
    publish("beta", "1.0")
    index.login = ("ci", "secret-word")
    lines = [f"--index-url {index.simple.replace('://', '://ci:secret-word@')}", "alpha"]

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("UV_DEFAULT_INDEX")
        found = resolved(*lines)

    data = (tmp_path / "index" / "alpha-1.0-py3-none-any.whl").read_bytes()
    assert found.wheels[0].sha256 == hashlib.sha256(data).hexdigest()
    assert versions(found) == {"alpha": "1.0", "beta": "1.0"}


def test_a_file_that_is_not_the_one_of_its_md5_is_refused(
    publish, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.algorithm = "md5"
    publish("alpha", "1.0")
    monkeypatch.setattr(wheels, "digests_of", lambda *_: {"md5": "0" * 32, "sha256": "0" * 64})

    with pytest.raises(ImageBuildError, match=r"alpha 1\.0 is not the file that its index names") as caught:
        resolved("alpha")

    assert caught.value.code == "lock-hash"


def test_lines_without_a_solution_are_named(publish) -> None:
    publish("alpha", "1.0")

    with pytest.raises(ImageBuildError, match="have no solution") as caught:
        resolved("alpha==7")

    assert "alpha==7" in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        'wheels = [{ url = "https://ann:hunter2@h.example/a-1-py3-none-any.whl", hashes = { sha256 = "0" } }]',
        'archive = { url = "https://hunter2@h.example/a.zip", hashes = { sha256 = "0" } }',
        'sdist = { url = "https://ann:hunter2@h.example/a.tar.gz", hashes = { sha256 = "0" } }',
        'vcs = { type = "git", url = "https://hunter2@h.example/a", commit-id = "0" }',
        'index = "https://ann:hunter2@h.example/simple"',
        'archive = { url = "https://h.example/a.zip?X-Amz-Signature=hunter2", hashes = { sha256 = "0" } }',
        'archive = { url = "https://h.example/a.zip?access_token=hunter2", hashes = { sha256 = "0" } }',
    ],
)
def test_a_lock_with_a_login_anywhere_is_refused(entry: str) -> None:
    with pytest.raises(ImageBuildError, match=r"would contain the login of h\.example") as caught:
        lock.read(HERE, f'[[packages]]\nname = "a"\nversion = "1"\n{entry}\n')

    assert "hunter2" not in str(caught.value)
    assert caught.value.code == "lock-credentials"
    assert ("git reads" in str(caught.value.next)) == entry.startswith("vcs")


def test_the_user_of_an_ssh_server_is_no_login() -> None:
    text = '[[packages]]\nname = "a"\nvcs = { type = "git", url = "ssh://git@h.example/a", commit-id = "0" }\n'

    assert lock.read(HERE, text).to_build == ("a",)


def test_a_password_of_an_index_comes_neither_into_the_lock_nor_into_a_message(publish, index, monkeypatch) -> None:
    publish("alpha", "1.0")
    index.login = ("ann", "hunter2")
    address = index.simple.replace("://", "://ann:hunter2@")
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    said: list[str] = []

    found = lock.resolve([f"--index-url {address}", "alpha"], HERE, said.append)
    monkeypatch.setenv("UV_DEFAULT_INDEX", address)
    by_variable = lock.resolve(["alpha"], HERE, said.append)
    with pytest.raises(ImageBuildError) as caught:
        lock.resolve([f"--index-url {address}", "alpha==7"], HERE, said.append)

    assert found == by_variable
    assert "hunter2" not in f"{found.text}{said}{caught.value}"


def test_a_secret_of_a_wheel_that_cannot_be_fetched_is_in_no_message(monkeypatch: Any) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    said: list[str] = []

    with pytest.raises(ImageBuildError) as caught:
        lock.resolve(["alpha @ http://127.0.0.1:1/alpha-1.0-py3-none-any.whl?sig=hunter2"], HERE, said.append)

    assert "127.0.0.1:1/alpha-1.0-py3-none-any.whl" in f"{said}{caught.value}"
    assert "hunter2" not in f"{said}{caught.value}"


def test_a_line_with_a_secret_is_named_without_it() -> None:
    lines = ["alpha @ https://ann:hunter2@h.example/alpha-1.0.tar.gz?sig=hunter2"]

    advice = lock.suggest_line("Because alpha cannot be built, your requirements have no solution", lines, None)

    assert advice.endswith("alpha @ https://***@h.example/alpha-1.0.tar.gz?sig=***")


def test_an_index_that_wants_a_login_says_how_to_give_one(publish, index) -> None:
    publish("alpha", "1.0")
    index.login = ("ann", "hunter2")

    with pytest.raises(AccessDeniedError, match="rejected our credentials") as caught:
        resolved("alpha")

    assert caught.value.code == "index-login"
    assert "~/.netrc" in (caught.value.next or "")


def test_an_index_that_is_not_there_is_no_matter_of_the_requirements(monkeypatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")

    with pytest.raises(ImageBuildError, match="the package index did not answer") as caught:
        resolved("alpha")

    assert caught.value.code == "index-silent"


def test_an_index_with_a_certificate_that_is_not_trusted_says_how_to_trust_it(tmp_path: Path, monkeypatch) -> None:
    pair, context = Authority(tmp_path).issue("server"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # that a client hangs up is what is tried
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"https://127.0.0.1:{server.server_address[1]}/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")

    with pytest.raises(ImageBuildError, match="the package index has a certificate that is not trusted") as caught:
        resolved("alpha")
    server.shutdown()
    thread.join()
    server.server_close()

    assert (caught.value.code, caught.value.next) == ("index-silent", TRUST)


@pytest.mark.parametrize(
    ("indexes", "named"),
    [
        (["https://one.example/simple"], ["https://one.example/simple"] * 2),
        ([], ["", ""]),
        (
            ["https://one.example/simple", "https://two.example/team/simple/", "https://two.example/other/simple"],
            ["", "https://two.example/team/simple/"],
        ),
        (["https://one.example/simple", "https://two.example/te"], ["", ""]),
    ],
    ids=["one", "links", "by its address", "not sure"],
)
def test_the_index_of_a_package_is_named_where_it_is_certain(
    indexes: list[str], named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default, more = indexes[:1], indexes[1:]
    monkeypatch.setenv("UV_DEFAULT_INDEX", default[0] if default else "https://else.example/simple")
    lines = [] if default else ["--find-links https://files.example"]
    if more:
        (tmp_path / "a folder").mkdir()
        monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "a folder"))
    entry = "[[packages]]\nname = {}\nversion = '1'\n{} = {{ url = '{}', hashes = {{ sha256 = '{}' }} }}\n"
    of_files = "https://files.example/a-1.tar.gz"
    of_team = "https://two.example/team/packages/b-1.tar.gz"
    text = "lock-version = '1.0'\n" + "".join(
        entry.format(f"'{name}'", kind, url, "0" * 64)
        for name, kind, url in [("a", "sdist", of_files), ("b", "sdist", of_team), ("c", "archive", of_files)]
    )

    packages = tomllib.loads(lock.with_indexes(text, lines, tmp_path, more))["packages"]

    assert [each.get("index", "") for each in packages] == [*named, ""]
    assert [each["name"] for each in packages] == ["a", "b", "c"]


def test_a_file_of_pypi_is_of_pypi_beside_other_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    monkeypatch.delenv("UV_INDEX_URL", raising=False)
    index, host = "pypi", "pythonhosted"
    file = f"https://files.{host}.org/packages/ab/a-1.tar.gz"
    text = f'[[packages]]\nname = "a"\nsdist = {{ url = "{file}" }}\n'

    [package] = tomllib.loads(lock.with_indexes(text, [], tmp_path, ["https://one.example/simple"]))["packages"]

    assert package["index"] == f"https://{index}.org/simple"


def test_an_index_that_uv_has_named_itself_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://one.example/simple")
    own = 'index = "https://one.example/simple"'
    text = f'[[packages]]\nname = "a"\n{own}\nsdist = {{ url = "https://files.example/a-1.tar.gz" }}\n'

    assert lock.with_indexes(text, [], tmp_path, []) == text


def test_an_index_with_a_secret_in_its_address_is_not_named_in_a_file(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://one.example/simple?token=hunter2")
    text = '[[packages]]\nname = "a"\nsdist = { url = "https://files.example/a-1.tar.gz" }\n'

    assert lock.with_indexes(text, [], tmp_path, []) == text


@pytest.mark.parametrize("begin", [[""], ["alpha", "-c "]], ids=["requirement", "constraint"])
def test_a_file_must_have_a_hash_that_its_line_names(publish, begin: list[str]) -> None:
    publish("alpha", "1.0")
    right = resolved("alpha").wheels[0].sha256
    *lines, option = begin

    found = resolved(*lines, f"{option}alpha==1.0 --hash=sha256:{right} --hash=sha256:{'0' * 64}")
    assert found.wheels[0].sha256 == right
    with pytest.raises(ImageBuildError, match="is not the file that the requirements name") as caught:
        resolved(*lines, f"{option}alpha==1.0 --hash=sha256:{'0' * 64}")

    assert caught.value.code == "lock-hash"


def test_files_that_a_line_does_not_list_are_left_out_of_the_lock(publish) -> None:
    publish("alpha", "1.0", tag="py3-none-any")
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    text = resolved("alpha").text
    listed = next(
        each for each in re.findall(r'sha256 = "(.{64})"', text) if each != resolved("alpha").wheels[0].sha256
    )

    found = resolved(f"alpha==1.0 --hash=sha256:{listed}")

    assert re.findall(r'sha256 = "(.{64})"', found.text) == [listed]


def test_another_companys_kinetic_is_in_no_lock(publish) -> None:
    publish("alpha", "1.0", needs="kinetic")
    publish("kinetic", "9.0")

    assert versions(resolved("alpha")) == {"alpha": "1.0"}
    assert set(resolved("alpha", where=lock.here(PYTHON)).versions()) == {"alpha"}


def test_a_change_of_one_package_changes_one_entry_of_the_lock(publish) -> None:
    for name in ("alpha", "beta", "gamma"):
        publish(name, "1.0")
    before = resolved("alpha", "beta", "gamma")
    for name in ("alpha", "beta", "gamma"):
        publish(name, "2.0")

    after = resolved("alpha", "beta==2.0", "gamma", before=before.text)

    assert set(after.wheels) - set(before.wheels) == {wheel for wheel in after.wheels if wheel.name == "beta"}


def test_a_lock_for_this_machine_prefers_the_versions_of_one_for_a_cluster(publish) -> None:
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_aarch64")
    publish("alpha", "1.0")
    cluster = resolved("alpha", where=Platform(PYTHON, "aarch64", "2_36"))
    publish("alpha", "2.0")

    assert resolved("alpha", where=lock.here(PYTHON), before=cluster.text).versions() == {"alpha": "1.0"}


def jax(version: str, uploaded: str) -> str:
    file = f'url = "https://h.example/jax-{version}-py3-none-any.whl", upload-time = {uploaded}'
    file += ', hashes = { sha256 = "0" }'
    return f'[[packages]]\nname = "jax"\nversion = "{version}"\nwheels = [{{ {file} }}]\n'


@pytest.mark.parametrize(
    ("ours", "newest", "asked", "warns"),
    [
        ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z", 0, False),
        ("2025-03-05T00:00:00Z", "2026-10-21T00:00:00Z", 1, True),
        ("2025-03-05T00:00:00Z", "2025-10-21T00:00:00Z", 1, False),
    ],
)
def test_a_jax_that_is_a_year_older_than_the_newest_is_told(monkeypatch, ours, newest, asked, warns) -> None:
    runs = []

    def run_uv(words: list[str], folder: Path, *_: object, **__: object) -> uv.UvResult:
        runs.append(words)
        (folder / lock.FILE).write_text(jax("0.12.0", newest))
        return uv.UvResult(0, [])

    monkeypatch.setattr(uv, "run_uv", run_uv)

    said = lock.old_jax(lock.read(HERE, jax("0.5.2", ours)), dt.datetime(2026, 11, 23, tzinfo=dt.UTC))

    assert len(runs) == asked
    assert bool(said) == warns
    if warns:
        assert said == "the requirements resolve to jax 0.5.2 of March 2025; the newest is 0.12.0 of October 2026"


def test_a_resolution_that_is_to_stop_kills_uv(publish) -> None:
    publish("alpha", "1.0")
    stop = uv.Stop()
    stop.set()

    with pytest.raises(CancelledError):
        resolved("alpha", stop=stop)


@pytest.mark.parametrize("text", ["", "packages = 3", "[[packages]]\nname = 'a'\nwheels = [{}]\n", "}"])
def test_a_damaged_lock_is_an_error_with_a_way_out(text: str) -> None:
    with pytest.raises(ImageBuildError, match="is damaged"):
        lock.read(HERE, text)


@pytest.mark.parametrize("name", ["UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_CONFIG_FILE"])
def test_the_key_of_a_lock_changes_with_the_files_that_a_variable_names(tmp_path, name) -> None:
    file = tmp_path / ("a folder" if name == "UV_CONFIG_FILE" else "folder") / "file"
    file.parent.mkdir()
    keys = [lock.key_of(["a"], HERE, {}), lock.key_of(["a"], HERE, {name: str(file)})]
    for text in ("b<2", "b<1"):
        file.write_text(text)
        keys.append(lock.key_of(["a"], HERE, {name: str(file)}))

    assert len(set(keys)) == len(keys)


def test_the_key_of_a_lock_changes_with_what_changes_its_result_and_has_no_secret() -> None:
    keys = {
        lock.key_of(lines, where, environ)
        for lines in (["a"], ["b"])
        for where in (HERE, Platform(PYTHON, "aarch64", "2_36"), Platform("3.99", "x86_64", "2_36"))
        for environ in ({}, {"UV_INDEX": "https://ann:secret@index"})
    }

    assert len(keys) == 12
    assert lock.key_of(["a  b"], HERE, {"UNRELATED": "1"}) == lock.key_of(["a b"], HERE, {})


def test_a_file_of_uv_for_all_projects_is_part_of_the_key_of_a_lock(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    without = lock.key_of(["six"], HERE, environ)
    file = tmp_path / ".config" / "uv" / "uv.toml"
    file.parent.mkdir(parents=True)
    keys = []

    for host in ("one", "two"):
        file.write_text(f'[[index]]\nurl = "https://{host}.example/simple"\n')
        keys.append(lock.key_of(["six"], HERE, environ))

    assert len({without, *keys}) == 3
    assert lock.key_of(["six"], HERE, {**environ, "UV_NO_CONFIG": "1"}) not in {without, *keys}
