"""The first process of a container: from its arguments to a supervisor, and from any error to an exit code."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from kinetic._runner.pod import container, log_pump
from kinetic._runner.pod.container import HostInPod
from kinetic._runner.pod.log_pump import say, write_termination_message
from kinetic._runner.pod.pod_source import PodSource
from kinetic._runner.supervisor import attempts
from kinetic._runner.supervisor.supervise import Supervisor
from kinetic._runner.supervisor.worker_process import EarlyWorker
from kinetic._runner.worker import worker
from kinetic._stores import connect
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT, TERMINATION_LOG, WARM, Task
from kinetic.errors import CredentialsError, IntegrityError, KineticError, StoreError


def main(words: list[str], base: str, runner: str, supervisor: Supervisor | None = None) -> NoReturn:
    """Be the first process of a container: its arguments, a folder of its own, and the folder with this code.

    ``supervisor``: of a task of a warm pod, made before.
    """
    if words[:1] == [WARM]:
        from kinetic._runner.pod import warm_pod  # most pods have one job

        warm_pod.main(words[1:], base, runner, get_ready)
    code, began = INFRASTRUCTURE_EXIT, time.monotonic()
    message, summary, message_file = "", "", TERMINATION_LOG
    try:
        task = Task.from_page(container.page_of(words[0] if words else ""))
        settings = container.settings_of(task)
        message_file = settings.last_words
        place = HostInPod(
            container.host_of(task.hosts, os.environ, slices=task.slices),
            container.restarts_of(os.environ),
            Path(base),
            runner,
        )
        code = PodSource(task, place, os.environ).run(supervisor or Supervisor(worker.work))
    except (KineticError, OSError) as error:
        # Another attempt may succeed that finds the store in reach, and room on the disk.
        passes = isinstance(error, OSError | StoreError | CredentialsError) and not isinstance(error, IntegrityError)
        # A JobSet starts a slice again without end, and what ends each start leaves no note by which one gives up.
        is_last = (container.restarts_of(os.environ) or 0) >= container.MOST_BRIEF
        is_last = is_last and time.monotonic() - began < container.BRIEF_SECONDS
        code = INFRASTRUCTURE_EXIT if passes and not is_last else FAILED_EXIT
        message, summary = str(error), attempts.on_one_line(error)
    except BaseException as error:  # noqa: BLE001 - the last frame of the first process
        import traceback  # 2 ms

        say(traceback.format_exc().rstrip())
        message = summary = f"{type(error).__name__}: {error}"
    finally:
        if message:
            say(message)
            write_termination_message(message_file, summary)
            log_pump.drain_output(log_pump.DRAIN_SECONDS)
        os._exit(code)


def get_ready(store_url: str) -> Callable[[list[str], str, str], NoReturn]:
    """Fork a worker for a task that is not known yet; return what is to be called with it, as ``main``.

    Both connect to the store meanwhile, which is the one of the task.
    """
    supervisor = Supervisor(worker.work)
    supervisor.early = EarlyWorker(functools.partial(worker.get_ready, store_url=store_url), supervisor.libc)
    connect(store_url)
    return functools.partial(main, supervisor=supervisor)
