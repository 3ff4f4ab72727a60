"""The Tab key: scripts that a shell can read, and the right words at every place, through real processes."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._config import home as config_home
from kinetic._jobs import index
from kinetic._wire import keys

SOURCE = Path(__file__).parents[3] / "src"
SHELLS = ("bash", "zsh", "fish")
JOB = "cpu-train-20261120-134402-1f0c9ab"
NEWER = "cpu-train-20261121-080000-aaaaaaa"
OTHER = "l4-tune-20261119-134402-2222222"


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """Make a `kinetic` that a shell can find."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = f'#!/bin/sh\nexec "{sys.executable}" -c "from kinetic._cli.main import main; main()" "$@"\n'
    (folder / "kinetic").write_text(script)
    (folder / "kinetic").chmod(0o755)
    return folder


@pytest.fixture
def environ(tool: Path, home: Path) -> dict[str, str]:
    path = f"{tool}:{os.environ['PATH']}"
    for name in (JOB, NEWER, OTHER, "history", "data", ".tmp"):
        (home / "store" / name).mkdir(parents=True)
    (home / "profiles.json").write_text(json.dumps({"profiles": {"team": {"context": "c"}, "tiny": {"context": "c"}}}))
    return {"PATH": path, "KINETIC_HOME": str(home), "HOME": str(home), "PYTHONPATH": str(SOURCE)}


@pytest.fixture
def complete(environ):
    """Return a function that asks as a shell would, in a process: the words of a line, the last one half typed."""

    def ask(*words: str, **more: str) -> list[str]:
        asked = {"_KINETIC_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["kinetic", *words]).rstrip()}
        asked["COMP_CWORD"] = str(len(words))
        done = subprocess.run(["kinetic"], env=environ | asked | more, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return [line.partition(",")[2] for line in done.stdout.splitlines() if line]

    return ask


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_readable_by_its_shell(shell, kinetic, tmp_path) -> None:
    told = kinetic("completion", shell)

    assert told.exit_code == 0
    assert "_KINETIC_COMPLETE" in told.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(told.stdout)
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_shell_is_a_mistake_that_lists_the_three(kinetic) -> None:
    told = kinetic("completion", "tcsh")

    assert told.exit_code == 2
    assert all(shell in told.stderr for shell in SHELLS)


def test_a_real_bash_completes_the_id_of_a_job(environ) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = (
        'eval "$(kinetic completion bash)"; COMP_WORDS=(kinetic jobs logs l4-); COMP_CWORD=3; '
        '_kinetic_completion kinetic; echo "${COMPREPLY[@]}"'
    )

    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True)

    assert done.stdout == f"{OTHER}\n"


def test_a_real_fish_completes_ids_commands_and_names(environ) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = "kinetic completion fish | source; for words in 'jobs logs l4-' 'profile u' 'profile use t' 'disk --j'; "
    script += 'complete -C "kinetic $words"; end'

    done = subprocess.run(["fish", "-c", script], env=environ, capture_output=True, text=True, check=True)

    offered = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert offered == [OTHER, "use", "unset", "team", "tiny", "--json"]


def test_a_real_fish_shows_the_newest_job_first_and_whole_sentences_beside_commands(environ) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = "kinetic completion fish | source; for words in 'jobs logs cpu-' 'po'; complete -C \"kinetic $words\"; end"

    done = subprocess.run(["fish", "-c", script], env=environ, capture_output=True, text=True, check=True)

    pools = "pool\tAdd, change, remove and list the node pools of a Standard cluster."
    assert done.stdout.splitlines() == [NEWER, JOB, pools]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("jobs logs l4-", f"jobs logs {OTHER} "), ("jobs expl", "jobs explain "), ("key ex", "key export ")],
)
def test_a_real_zsh_completes_what_is_typed(environ, home, typed, completed) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    begin = 'autoload -U compinit; compinit -u -D; eval "$(kinetic completion zsh)"; '
    begin += 'show() { print -r -- "$BUFFER" > $HOME/buffer; BUFFER=exit; zle accept-line }; zle -N show; '
    begin += "bindkey '^X' show; PS1=now''typing\n"

    on_a_terminal(["zsh", "-f", "-i"], environ, begin, until="nowtyping", then=f"kinetic {typed}\t\x18")

    assert (home / "buffer").read_text() == f"kinetic {completed}\n"


def on_a_terminal(words: list[str], environ: dict[str, str], first: str, *, until: str, then: str) -> None:
    """Run a program on a terminal to its end; type the first line, wait for what it shows then, and type the rest."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(words[0], words, {**environ, "TERM": "dumb"})
    said, typed = "", False
    os.write(terminal, first.encode())
    try:
        while data := os.read(terminal, 4096):
            said += data.decode(errors="replace")
            if not typed and until in said:
                typed = True
                os.write(terminal, then.encode())
    except OSError:  # the end of the other side
        return
    finally:
        os.kill(pid, signal.SIGKILL)  # it has ended; or it never will
        os.waitpid(pid, 0)
        os.close(terminal)


def test_a_bash_that_is_too_old_for_our_order_completes_all_the_same(environ) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = (
        'complete() { [ "$2" = nosort ] && return 2; builtin complete "$@"; }; '  # as bash 3.2 of macOS does
        'eval "$(kinetic completion bash)"; complete -p kinetic'
    )

    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True)

    assert done.stdout == "complete -F _kinetic_completion kinetic\n"


def test_ids_of_jobs_are_offered_newest_first(complete) -> None:
    assert complete("jobs", "logs", "cpu-") == [NEWER, JOB]
    assert complete("jobs", "result", "") == ["@last", NEWER, JOB, OTHER]


def test_names_that_one_job_or_batch_has_are_offered(environ, home) -> None:
    for job, name in ((JOB, "nightly"), (NEWER, "twice"), (OTHER, "twice")):
        (home / "store" / job / "handle.json").write_text(json.dumps({"name": name}))
    manifest = home / "store" / keys.group_manifest("grp-11111111")
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"group_name": "night-sweep"}))
    script = 'eval "$(kinetic completion bash)"; for COMP_LINE in "jobs logs nig" "jobs logs tw" "batch logs n"; do '
    script += "COMPREPLY=(); COMP_WORDS=(kinetic $COMP_LINE); COMP_CWORD=3; _kinetic_completion kinetic; "
    script += 'echo "${COMPREPLY[@]}"; done'

    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["nightly", "", "night-sweep"]


def test_jobs_of_a_cluster_are_offered_once_they_were_listed(complete, home) -> None:
    cluster = "gs://acme-kn-kinetic-cluster-jobs"
    key_id, _ = config_home.own_key(home)
    job = "v5e1-train-20261122-080000-bbbbbbb"
    known = index.index_of(SimpleNamespace(url=cluster))
    known.note_record(job, {"job_id": job, "name": "large", "group_id": "grp-22222222", "key_id": key_id})
    known.write(lambda: [job])

    assert complete("jobs", "logs", "", KINETIC_PROJECT="acme") == ["@last", job, NEWER, JOB, OTHER, "large"]
    assert complete("batch", "logs", "", KINETIC_PROJECT="acme") == ["@last", "grp-22222222"]
    assert complete("jobs", "logs", "v5") == []


STRANGE = (
    "cpu-x;touch pwned",
    "cpu-$(touch pwned)",
    "cpu-`touch pwned`",
    "cpu-a b",
    "cpu-x\\ny",
    "cpu-\x1b[2J",
    "cpu-'",
)


def test_a_folder_with_a_name_that_no_job_has_is_not_offered(complete, home) -> None:
    for name in STRANGE:
        (home / "store" / name).mkdir()
        (home / "store" / "_groups" / name.replace("cpu", "grp")).mkdir(parents=True)
        (home / "store" / "_groups" / name.replace("cpu", "grp") / "manifest.json").touch()

    assert complete("jobs", "logs", "cpu-") == [NEWER, JOB]
    assert complete("batch", "logs", "grp-") == []


def test_a_real_bash_runs_nothing_of_what_it_is_offered(environ, home, tmp_path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    (home / "store" / "cpu-x;touch pwned").mkdir()  # alone, so that Tab would put the whole of it into the line
    begin = 'eval "$(kinetic completion bash)"; PS1=now""typing\n'

    on_a_terminal(
        ["bash", "--norc", "-i"],
        environ,
        begin,
        until="nowtyping",
        then=f"cd {tmp_path}; kinetic jobs wait cpu-x\t\t\nexit\n",
    )

    assert not list(tmp_path.rglob("pwned"))


def test_names_of_profiles_are_offered(complete) -> None:
    assert complete("profile", "use", "t") == ["team", "tiny"]
    assert complete("--profile", "") == ["local", "team", "tiny"]


def test_accelerators_are_offered(complete) -> None:
    assert complete("accelerators", "gpu-t") == ["gpu-t4", "gpu-t4x2", "gpu-t4x4"]


def test_commands_and_options_are_offered(complete) -> None:
    assert complete("prof") == ["profile"]
    assert complete("profile", "u") == ["use", "unset"]
    assert "--follow" in complete("jobs", "logs", "--f")
    assert complete("completion", "") == [*SHELLS]


@pytest.mark.parametrize("line", ["run tr", "dev tr", "run -- python tr"])
def test_the_shell_completes_files_where_one_is_typed(environ, line) -> None:
    at = str(len(line.split()))
    asked = {"_KINETIC_COMPLETE": "bash_complete", "COMP_WORDS": f"kinetic {line}", "COMP_CWORD": at}

    done = subprocess.run(["kinetic"], env=environ | asked, capture_output=True, text=True, check=False)

    assert done.stdout == "file,tr\n"


def test_a_home_that_is_broken_offers_nothing_and_says_nothing(complete, home) -> None:
    (home / "profiles.json").write_text("{")

    assert complete("profile", "use", "") == []
    assert complete("jobs", "logs", "cpu-", KINETIC_STORE="gs://far-away") == []


def test_ctrl_c_while_words_are_looked_for_prints_nothing(environ, tmp_path) -> None:
    hook = "lambda event, args: args[:1] == ('kinetic._cli.shared_options',) and signal.raise_signal(signal.SIGINT)"
    (tmp_path / "sitecustomize.py").write_text(f"import signal, sys\nsys.addaudithook({hook})\n")
    environ["PYTHONPATH"] += f":{tmp_path}"
    asked = {"_KINETIC_COMPLETE": "bash_complete", "COMP_WORDS": "kinetic jobs logs cpu-", "COMP_CWORD": "3"}

    done = subprocess.run(
        [sys.executable, "-m", "kinetic"], env=environ | asked, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nothing_is_offered_where_there_is_no_home(complete, tmp_path) -> None:
    assert complete("jobs", "logs", "", KINETIC_HOME=str(tmp_path / "none")) == []
    assert not (tmp_path / "none").exists()


def test_completing_loads_little(environ) -> None:
    asked = {"_KINETIC_COMPLETE": "bash_complete", "COMP_WORDS": "kinetic jobs logs cpu-", "COMP_CWORD": "3"}
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    program += "from kinetic._cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ | asked, capture_output=True, text=True, check=False
    )
    loaded = set(done.stderr.split())

    assert "kinetic._cli.shared_options" in loaded
    late = {"sqlite3", "cloudpickle", "rich", "kinetic._jobs.find", "kinetic._backends.local.backend", "logging"}
    assert not late & loaded


def test_options_of_kinetic_are_offered_before_the_file_only(complete) -> None:
    assert "--accelerator" in complete("run", "--acc")
    assert complete("run", "-a", "cpu", "train.py::train", "--acc") == []
