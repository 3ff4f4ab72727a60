"""A kubeconfig is parsed once: from then on its values are read from where they stand in it, and none is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic._backends.kube import kubeconfig
from kinetic.errors import SettingsError

WRITTEN = """\
apiVersion: v1
clusters:
- name: dev
  cluster: {server: "https://k8s:6443", certificate-authority-data: Q0E=, insecure-skip-tls-verify: false}
users:
- name: ada
  user:
    token: s3cret-token
    exec: {command: log-in, args: [--region, 'europe'], env: [{name: PASSWORD, value: p4ss}], interactiveMode: null}
contexts:
- {name: dev, context: {cluster: dev, user: ada}}
current-context: dev
"""
PARSED = "import sys; from pathlib import Path; from kinetic._backends.kube import kubeconfig"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    made.mkdir(mode=0o700)
    monkeypatch.setenv("KINETIC_HOME", str(made))
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.write_text(WRITTEN)
    return made


def kept(home: Path) -> list[Path]:
    return sorted((home / "cache").glob("kubeconfig-*.json"))


def parses(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict, int]:
    """Return what a file says, and how often PyYAML was asked for it."""
    asked: list[str] = []
    real = kubeconfig._parsed
    with monkeypatch.context() as patched:
        patched.setattr(kubeconfig, "_parsed", lambda text: asked.append(text) or real(text))
        return kubeconfig.read(path), len(asked)


def test_the_second_process_reads_a_kubeconfig_without_yaml(home: Path, path: Path) -> None:
    code = f"{PARSED}; page = kubeconfig.read(Path({str(path)!r})); print(page['users'], 'yaml' in sys.modules)"
    first, second = (subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(2))

    assert first.endswith("True\n")
    assert second == first.replace("True\n", "False\n")


def test_what_was_kept_says_the_same_as_the_file_and_has_no_value_of_it(home: Path, path: Path, monkeypatch) -> None:
    first, again = parses(path, monkeypatch), parses(path, monkeypatch)

    (page,) = kept(home)
    assert (first[1], again[1]) == (1, 0)
    assert again[0] == first[0]
    assert again[0]["clusters"][0]["cluster"]["insecure-skip-tls-verify"] is False
    assert not [word for word in ("s3cret", "p4ss", "k8s", "Q0E", "europe", "ada") if word in page.read_text()]


def test_a_file_that_changed_is_parsed_again(home: Path, path: Path, monkeypatch) -> None:
    parses(path, monkeypatch)
    path.write_text(WRITTEN.replace("s3cret-token", "n3w"))

    assert parses(path, monkeypatch)[0]["users"][0]["user"]["token"] == "n3w"
    assert parses(path, monkeypatch)[1] == 0


@pytest.mark.parametrize("damage", [b"", b"{", b'{"kinetic-cache": 1, "sha256": "SHA", "outline": [1]}'])
def test_a_damaged_page_is_made_again(home: Path, path: Path, monkeypatch, damage: bytes) -> None:
    said, _ = parses(path, monkeypatch)
    (page,) = kept(home)
    page.write_bytes(damage.replace(b"SHA", json.loads(page.read_bytes())["sha256"].encode()))

    assert parses(path, monkeypatch) == (said, 1)
    assert parses(path, monkeypatch) == (said, 0)


@pytest.mark.parametrize(
    "line", ['extra: "a\\nb"', "extra: 2026-11-26", "1: one", "extra: [1.5]", '"": none', "extra: |\n  two\n  lines"]
)
def test_what_cannot_be_pointed_at_is_parsed_each_time(home: Path, path: Path, monkeypatch, line: str) -> None:
    path.write_text(f"{WRITTEN}{line}\n")

    said = [parses(path, monkeypatch) for _ in range(2)]

    assert said[0] == said[1]
    assert said[0][1] == 1
    assert kept(home) == []


def test_no_home_is_made_for_it(home: Path, path: Path, monkeypatch) -> None:
    home.rmdir()

    assert parses(path, monkeypatch)[1] == 1
    assert not home.exists()


def test_a_home_that_cannot_be_written_only_costs_time(home: Path, path: Path, monkeypatch) -> None:
    (home / "cache").write_text("not a folder")

    assert parses(path, monkeypatch)[0]["current-context"] == "dev"


@pytest.mark.parametrize("text", ["a: [", "- a", "\xff"])
def test_a_file_that_is_no_kubeconfig_is_named(home: Path, path: Path, text: str) -> None:
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(SettingsError, match="cannot read a kubeconfig") as raised:
        kubeconfig.read(path)
    assert str(path) in str(raised.value)
