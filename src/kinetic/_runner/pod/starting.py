"""From the words of a container's command to its supervisor, and from whatever goes wrong to an exit code."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import NoReturn

from kinetic._runner.pod import preparing, reaching
from kinetic._runner.pod.preparing import Place
from kinetic._runner.pod.source import PodSource
from kinetic._runner.pod.telling import finish, last_words, say
from kinetic._wire.pod import FAILED_EXIT, INFRASTRUCTURE_EXIT, TERMINATION_LOG
from kinetic._wire.task import Task
from kinetic.errors import CredentialsError, IntegrityError, KineticError, StoreError

_LAST_SECONDS = 2.0  # for whoever reads the container's output, after something went wrong


def main(words: list[str], base: str, runner: str) -> NoReturn:
    """Be the first process of a container.

    Args:
        words: The task.
        base: A folder of this container's own.
        runner: The folder with this code.
    """
    code = INFRASTRUCTURE_EXIT
    message, place_for_it = "", TERMINATION_LOG
    try:
        task = Task.from_page(page_of(words[0] if words else ""))
        settings = preparing.settings_of(task)
        place_for_it = settings.last_words
        reaching.see_to_a_client(settings.reaches_with, Path(base))
        place = Place(preparing.host_of(task, os.environ), preparing.restarts_of(os.environ), Path(base), runner)
        code = PodSource(task, place, os.environ).run()
    except (KineticError, OSError) as error:
        code, message = _code_of(error), str(error)
    except BaseException as error:  # noqa: BLE001 - the last frame of the first process
        say(traceback.format_exc().rstrip())
        message = f"{type(error).__name__}: {error}"
    finally:
        if message:
            say(message)
            last_words(place_for_it, message)
            finish(_LAST_SECONDS)
        os._exit(code)


def page_of(word: str) -> str:
    """Return the page that an argument of the container stands for."""
    return Path(word[1:]).read_text() if word.startswith("@") else word


def _code_of(error: Exception) -> int:
    """Say whether another attempt may fare better: one that finds the store in reach, and room on the disk."""
    passes = isinstance(error, OSError | StoreError | CredentialsError) and not isinstance(error, IntegrityError)
    return INFRASTRUCTURE_EXIT if passes else FAILED_EXIT
