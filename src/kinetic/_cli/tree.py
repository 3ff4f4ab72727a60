"""Every command of the tree: its name, where it is defined, and the one line that the help of its group shows.

Nothing is imported for it: a command is loaded when it is called. A test holds each line to the command's own words.
"""

from __future__ import annotations

from kinetic._cli.lazy import Later

_COMMANDS = "kinetic._cli.commands"

# The order is that of the help.
_TREE = """
    run            | run:run                   | Run a function of a file as a job.
    jobs           | jobs:jobs                 | Look at jobs, collect them, end them.
    jobs list      | jobs:list_                | List jobs, newest first.
    jobs show      | jobs:show                 | Show everything that is known of a job.
    jobs status    | jobs:status               | Print the status of a job.
    jobs explain   | explain:explain           | Say why a job waits or failed, and what to do.
    jobs wait      | wait:wait                 | Wait until jobs have ended.
    jobs logs      | logs:logs                 | Print the log of a job.
    jobs debug     | debug:debug               | Attach a debugger to a job that was submitted with debug=True.
    jobs stacks    | stacks:stacks             | Print where each thread of a running job is.
    jobs shell     | shell:shell               | Open a shell where a job runs, or run a command there.
    jobs result    | result:result             | Wait for a job and print its value, or save it.
    jobs cancel    | ending:cancel             | Cancel a job; its log stays.
    jobs cleanup   | ending:cleanup            | Remove a job and what is stored of it, or many.
    batch          | batch:batch               | Look at batches, collect them, end them, go on with them.
    batch list     | batch:list_               | List batches, newest first.
    batch status   | batch_status:status       | Show how a batch stands, and each of its jobs.
    batch results  | batch_results:results     | Wait for a batch and print its values, or save them.
    batch logs     | batch_logs:logs           | Print the log of one job of a batch.
    batch cancel   | batch_ending:cancel       | Cancel a batch: what runs, waits or is not submitted yet.
    batch cleanup  | batch_ending:cleanup      | Remove a batch: its jobs, their results and logs, and itself.
    batch resume   | batch_resume:resume       | Go on with a batch whose driver is gone: submit what is missing.
    outputs        | outputs:outputs           | List what jobs wrote, and copy it here.
    package        | package:package           | Show what would go with a job.
    accelerators   | accelerators:accelerators | Show what a job can run on.
    config         | config:config             | Show every setting, its value and who set it.
    profile        | profile:profile           | Save places under a name, and choose among them.
    profile create | creating:create           | Save a place under a name.
    profile list   | profile:list_             | List the profiles.
    profile use    | profile:use               | Make a profile the current one.
    profile unset  | profile:unset             | Leave no profile the current one.
    profile show   | profile:show              | Show what a profile says.
    profile rm     | profile:remove            | Remove a profile.
    disk           | disk:disk                 | Show what kinetic's files hold, and why.
    key            | key:key                   | Take the key that seals results to another machine.
    key list       | key:list_                 | List the keys that this machine holds.
    key export     | key:export                | Print a key, for another machine.
    key import     | key:import_               | Add a key that another machine exported.
    completion     | completion:completion     | Print what makes a shell complete commands.
"""


def below(*group: str) -> dict[str, Later]:
    """Return the commands of a group, by name.

    Args:
        group: Its own name, word by word; none for ``kinetic`` itself.
    """
    found: dict[str, Later] = {}
    for line in _TREE.strip().splitlines():
        path, place, help_ = map(str.strip, line.split("|"))
        *above, name = path.split()
        if above == [*group]:
            found[name] = Later(f"{_COMMANDS}.{place}", help_)
    return found
