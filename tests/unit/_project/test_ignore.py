"""What stays out of a project, by name."""

from __future__ import annotations

import time

import pytest

from kinetic._project import ignore


def ships(path, *lines, defaults=True):
    return ignore.compile_rules(lines, defaults=defaults).above(path) is None


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", "a/.git", "__pycache__/a.pyc", "a/__pycache__/b.pyc", ".venv/bin/python", "venv/x",
        "node_modules/x.js", "a/.tox/x", ".nox/x", ".mypy_cache/x", ".ruff_cache/x", ".pytest_cache/x",
        "a/.ipynb_checkpoints/x", ".hg/x", ".svn/x", ".eggs/x", ".DS_Store", "a/.DS_Store", "a.pyc",
        "vendor/site-packages/numpy/x.py", ".coverage", "a/.coverage", ".coverage.host.pid1.XaB",
    ],
)  # fmt: skip
def test_what_nobody_wants_in_a_job_stays_out_by_default(path):
    assert not ships(path)


@pytest.mark.parametrize(
    "path",
    [
        "train.py", "env/model.py", "build/x.py", "dist/x.py", "wandb/run.log", ".idea/x", "pkg.egg-info/PKG-INFO",
        ".coveragerc", ".gitignore", ".kineticignore", "venv.py", "git/x", "a.pyc.txt", "node_modules.md",
        ".github/workflows/ci.yml",
    ],
)  # fmt: skip
def test_what_a_project_may_need_ships(path):
    assert ships(path)


def test_the_defaults_can_be_switched_off_but_not_the_repository_bytecode_and_secrets():
    assert ships(".venv/x", defaults=False)
    assert ships(".DS_Store", defaults=False)
    assert not ships(".git/x", defaults=False)
    assert not ships("a/__pycache__/x.pyc", defaults=False)
    assert not ships(".env", defaults=False)


@pytest.mark.parametrize("value", ["1", "true", "0", ""])
def test_only_the_value_1_switches_the_defaults_off(tmp_path, value):
    rules, _ = ignore.read_rules(tmp_path, {"KINETIC_NO_DEFAULT_EXCLUDES": value})

    assert (rules.above("venv/x") is None) == (value == "1")


@pytest.mark.parametrize(
    "path",
    [
        ".env", "a/.env", ".env.local", ".ENV", "server.pem", "Server.PEM", "tls.key", "id_rsa", "a/id_ed25519",
        "id_ecdsa", "id_dsa", "id_rsa_work", ".netrc", "_netrc", "credentials.json", "my-service-account.json",
        "service_account_prod.json", "ServiceAccount.json", "application_default_credentials.json", "x.p12", "x.pfx",
        "x.jks", "x.keystore", ".pypirc", ".npmrc", ".git-credentials", ".aws/credentials", "home/.ssh/config",
        ".gnupg/x", ".kube/config", "a/.kube/config", "token.json", "secrets.json", "secrets.yaml", "secrets.yml",
        "secrets.toml", ".streamlit/secrets.toml", "pass.kdbx", "client_secret_123.json", "gha-creds-0a1b.json",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_stays_out(path):
    rule = ignore.compile_rules([]).above(path)

    assert rule is not None
    assert rule.origin == "secret"


@pytest.mark.parametrize(
    "path",
    [
        ".env.example", ".env.template", ".env.sample", "a/.env.example", "id_rsa.pub", "id_ed25519.pub", "key.py",
        "environment.py", "tokenizer.json", "keys/a.txt", "monkey.txt", "secrets.py", "kube/config", "credentials.py",
        "service.json", "account.json",
    ],
)  # fmt: skip
def test_what_only_sounds_like_a_secret_ships(path):
    assert ships(path)


def test_a_negated_line_ships_one_secret_and_no_other():
    assert ships("certs/ca.pem", "!ca.pem")
    assert not ships("certs/other.pem", "!ca.pem")


# Each row was compared with `git check-ignore` of git 2.39 in an empty repository.
@pytest.mark.parametrize(
    ("path", "lines", "kept"),
    [
        ("data.csv", ["*.csv"], False),
        ("a/b/data.csv", ["*.csv"], False),
        ("a/data.csv", ["/*.csv"], True),
        ("data.csv", ["/*.csv"], False),
        ("a/data.csv", ["a/*.csv"], False),
        ("a/b/data.csv", ["a/*.csv"], True),
        ("x/a/data.csv", ["a/*.csv"], True),
        ("a/b/data.csv", ["a/**/data.csv"], False),
        ("a/data.csv", ["a/**/data.csv"], False),
        ("a/b/c/data.csv", ["**/data.csv"], False),
        ("data.csv", ["**/data.csv"], False),
        ("a/b/c", ["a/**"], False),
        ("a/x/b/y", ["**/b/**"], False),
        ("runs/1", ["runs/"], False),
        ("runs", ["runs/"], True),
        ("a/runs/1", ["runs/"], False),
        ("a/runs/1", ["/runs/"], True),
        ("a1.txt", ["a?.txt"], False),
        ("a/.txt", ["a?.txt"], True),
        ("a1.txt", ["a[0-9].txt"], False),
        ("ab.txt", ["a[!0-9].txt"], False),
        ("a1.txt", ["a[!0-9].txt"], True),
        ("a1.txt", ["a[^0-9].txt"], True),
        ("a].txt", ["a[]].txt"], False),
        ("a-.txt", ["a[a-].txt"], False),
        ("!x", ["\\!x"], False),
        ("#x", ["\\#x"], False),
        ("#x", ["#x"], True),
        ("a*b", ["a\\*b"], False),
        ("axb", ["a\\*b"], True),
        ("trailing", ["trailing   "], False),
        ("trailing ", ["trailing\\ "], False),
        ("x.log", ["*.log", "!x.log"], True),
        ("x.log", ["!x.log", "*.log"], False),
        ("logs/x.log", ["logs/", "!logs/x.log"], False),
        ("logs/x.log", ["logs/*", "!logs/x.log"], True),
        ("x", ["", "   ", "# a comment", "/"], True),
        ("a[", ["a["], True),
        ("DATA.CSV", ["*.csv"], True),
        ("x**y/z", ["x**y"], False),
        ("a.b", ["a+b", "a.b$", "^a.b"], True),
        ("a(1).txt", ["a(1).txt"], False),
        ("a\nb", ["a*b"], False),
        ("ünï.txt", ["ün*.txt"], False),
    ],
)
def test_a_line_means_what_it_means_to_git(path, lines, kept):
    assert ships(path, *lines) == kept


def test_a_folder_that_is_left_out_by_default_can_be_asked_for():
    assert ships("node_modules/x.js", "!node_modules/")


def test_the_reason_names_the_line():
    rule = ignore.compile_rules(["# nothing", "*.csv"]).above("a/data.csv")

    assert rule is not None
    assert rule.reason == ".kineticignore line 2: *.csv"


def test_an_ignore_file_that_cannot_be_read_is_passed_over_with_a_note(tmp_path):
    (tmp_path / ".kineticignore").mkdir()

    rules, notes = ignore.read_rules(tmp_path, {})

    assert rules.above("data.csv") is None
    assert ".kineticignore cannot be read" in notes[0]


def test_an_ignore_file_with_foreign_bytes_is_read(tmp_path):
    (tmp_path / ".kineticignore").write_bytes(b"\xef\xbb\xbf*.csv\r\ncaf\xe9\n*.log\n")

    rules, _ = ignore.read_rules(tmp_path, {})

    assert rules.above("a.csv") is not None
    assert rules.above("a.log") is not None


def test_ten_thousand_names_are_judged_in_milliseconds():
    rules = ignore.compile_rules([f"folder{number}/*.bin" for number in range(20)])
    folders = [[f"module_{number:03}.py" for number in range(100)] for _ in range(100)]

    def judge():
        start = time.perf_counter()
        assert not any(rules.concern(names) for names in folders)
        return time.perf_counter() - start

    assert min(judge() for _ in range(5)) < 0.03  # 2 ms here; ten times that on a slow machine


# Bounded: whoever wrote the file may be a stranger.


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 40 + "b", "a" * 250),
        ("*a" * 40 + "b", "/".join(["a" * 250] * 10)),
        ("x/" + "*a" * 40 + "b", "x/" + "a" * 250),
        ("**/a" * 30 + "/b", "/".join(["a"] * 1500)),
        ("**/" * 500 + "b", "/".join(["a"] * 1500)),
        ("**/*a" * 100 + "/b", "/".join(["aa"] * 1000)),
        ("?*" * 100 + "b", "a" * 250),
        ("[a-z]*" * 60 + "!", "a" * 250),
        ("[" * 4000, "[" * 250),
        ("\\" * 4000, "a"),
        (" " * 4000 + "x", "x"),
        ("[" * 1_000_000, "["),
        ("*" * 4000, "a" * 250),
    ],
)
def test_no_line_can_hang_the_walk(pattern, path):
    started = time.process_time()

    ignore.compile_rules([pattern]).above(path)

    assert time.process_time() - started < 1.0  # most take a millisecond; the first ones took longer than anybody waits


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**/b", "a/x/b/c", False),
        ("a/**/b/**/c", "a/b/c", True),
        ("a/**/b/**/c", "a/x/b/y/b/z/c", True),
        ("a/**/b/c/**/d", "a/b/x/b/c/d", True),
        ("**/a/**", "a", False),
        ("**/a/**", "x/a/y", True),
        ("**/*.py", "x/y.py", True),
        ("a/*b*c", "a/xbxbxc", True),
        ("a/*b*c", "a/xbxbxd", False),
        ("a/x**y", "a/xzy", True),
        ("a/x**y", "a/x/y", False),
        ("*a*ab", "aab", True),
        ("*ab*ab", "ab", False),
        ("/**/a", "a", True),
        ("/**", "a", True),
    ],
)
def test_stars_over_several_folders_fit_as_before(pattern, path, fits):
    (rule,) = ignore.compile_rules([pattern], defaults=False).of_the_user()

    assert rule.fits(path, path.rpartition("/")[2]) is fits


def test_an_ignore_file_without_end_is_read_up_to_a_limit_and_a_note_says_so(tmp_path):
    (tmp_path / ".kineticignore").write_text("*.csv\n" + "x" * (2 << 20))

    rules, notes = ignore.read_rules(tmp_path, {})

    assert rules.above("a.csv") is not None
    assert "the rest is ignored" in notes[0]


# Lines that leave out less than in the package that we replace.


@pytest.mark.parametrize(
    ("line", "paths", "note"),
    [
        ("data/*.csv", ["data/", "data/a/", "data/a/b.csv"],
         "line 1, 'data/*.csv', does not match data/a/b.csv: * stops at a slash, as with git; write data/**/*.csv"),
        ("*/cache", ["a/b/cache"], "'*/cache', does not match a/b/cache: * stops at a slash"),
        (" *.log", ["x.log"],
         "' *.log', does not match x.log: a blank in front belongs to the pattern, as with git; write *.log"),
    ],
)  # fmt: skip
def test_a_line_that_left_out_more_there_is_named_with_what_it_ships(line, paths, note):
    (said,) = ignore.differences_from_fnmatch(ignore.compile_rules([line]), paths)

    assert note in said


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ("data/*.csv", ["data/a.txt", "a.csv"]),  # it makes no difference in this project
        ("data/**/*.csv", ["x/data/a.csv"]),
        ("*.log", ["logs/x.txt"]),
        ("data/raw", ["x/data/raw"]),
        ("!data/*.csv", ["data/a/b.csv"]),
        ("data/*/", ["data/a/b"]),  # folders only, there as well
    ],
)
def test_a_line_that_means_the_same_here_is_not_worth_a_note(line, paths):
    assert ignore.differences_from_fnmatch(ignore.compile_rules([line]), paths) == ()
