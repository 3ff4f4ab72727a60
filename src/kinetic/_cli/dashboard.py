"""``kinetic dashboard``: a page in the browser that shows jobs and batches, live."""

from __future__ import annotations

import os
import sys

import click

from kinetic._output import format as output_format


@click.command
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Listen on this port of this machine.  [default: 8642, or a free one]",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--json-url", "as_json", is_flag=True, help="Print the address as one JSON document.")
def dashboard(port: int | None, no_open: bool, as_json: bool) -> None:
    """Show jobs and batches in the browser, live.

    The page shows the jobs of this machine and of the clusters of all profiles: status and reason, logs, attempts,
    files and results; batches as a grid, a table and a plot. It listens on this machine only, and the printed address
    has a secret in it. Ctrl-C ends it; no job is affected. It needs: pip install "kinetic-jobs[dashboard]"

    Example: kinetic dashboard --port 8700 --no-open
    """
    from kinetic._dashboard.server import Dashboard
    from kinetic._jobs import activity

    activity.stall_seconds(os.environ)  # each page of a job needs it
    found = Dashboard(port)
    if as_json:
        output_format.print_document(url=found.url, port=found.port)
    else:
        print(found.url)
    sys.stdout.flush()
    click.echo("Ctrl-C ends the dashboard; jobs keep running", err=True)
    if not no_open:
        _open(found.url)
    found.serve()
    click.echo("the dashboard has ended; no job was affected", err=True)


def _open(url: str) -> None:
    """Open the page once the server answers; the socket listens already, so a browser waits for it."""
    import webbrowser  # 10 ms; only here

    from kinetic._wire import python_runtime

    def open_() -> None:
        try:
            # Of those that Python finds, these run in the terminal: they would take it, and cannot show the page.
            is_text_only = type(webbrowser.get()) is webbrowser.GenericBrowser and "BROWSER" not in os.environ
        except webbrowser.Error:
            is_text_only = True
        if is_text_only or not webbrowser.open(url):
            click.echo("no browser was found: open the address above in one", err=True)

    python_runtime.start_thread(open_, "kinetic-browser")
