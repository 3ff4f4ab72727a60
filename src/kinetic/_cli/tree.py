"""Every command of the tree: its name, where it is defined, and the one line that the help of its group shows.

Nothing is imported for it: a command is loaded when it is called. A test holds each line to the command's own words.
"""

from __future__ import annotations

from kinetic._cli.lazy import Later

_COMMANDS = "kinetic._cli.commands"

# The order is that of the help.
_TREE = """
    run            | run:run                   | Run a function of a file as a job.
    jobs           | jobs:jobs                 | List, inspect, collect and cancel jobs.
    jobs list      | jobs:list_                | List jobs, newest first.
    jobs show      | jobs:show                 | Show all details of a job.
    jobs status    | jobs:status               | Print the status of a job.
    jobs explain   | explain:explain           | Show why a job is pending or failed, and what to do.
    jobs wait      | wait:wait                 | Wait until jobs have ended.
    jobs logs      | logs:logs                 | Print the log of a job.
    jobs debug     | debug:debug               | Attach a debugger to a job that was submitted with debug=True.
    jobs stacks    | stacks:stacks             | Print the stack of each thread of a running job.
    jobs shell     | shell:shell               | Open a shell in a running job, or run a command there.
    jobs result    | result:result             | Wait for a job and print its value, or save it.
    jobs cancel    | ending:cancel             | Cancel a job; its log is kept.
    jobs cleanup   | ending:cleanup            | Remove a job and its stored files, or many jobs.
    batch          | batch:batch               | List, inspect, collect, cancel and resume batches.
    batch list     | batch:list_               | List batches, newest first.
    batch status   | batch_status:status       | Show the state of a batch and of its jobs.
    batch results  | batch_results:results     | Wait for a batch and print its values, or save them.
    batch logs     | batch_logs:logs           | Print the log of one job of a batch.
    batch cancel   | batch_ending:cancel       | Cancel the running, pending and unsubmitted jobs of a batch.
    batch cleanup  | batch_ending:cleanup      | Remove a batch: its jobs, their results and logs, and itself.
    batch resume   | batch_resume:resume       | Submit the missing inputs of a batch whose driver has ended.
    outputs        | outputs:outputs           | List and copy the output files of jobs.
    package        | package:package           | Show which files would be sent with a job.
    accelerators   | accelerators:accelerators | Show what a job can run on.
    config         | config:config             | Show every setting, its value and its source.
    profile        | profile:profile           | Save and select profiles: where jobs run, and their options.
    profile create | creating:create           | Save a profile.
    profile list   | profile:list_             | List the profiles.
    profile use    | profile:use               | Make a profile the current one.
    profile unset  | profile:unset             | Clear the current profile.
    profile show   | profile:show              | Show a profile.
    profile rm     | profile:remove            | Remove a profile.
    disk           | disk:disk                 | Show the disk space that kinetic uses, and why.
    key            | key:key                   | Export and import the keys that seal results.
    key list       | key:list_                 | List the keys of this machine.
    key export     | key:export                | Print a key, for another machine.
    key import     | key:import_               | Add a key that another machine exported.
    completion     | completion:completion     | Print a script for shell completion.
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
