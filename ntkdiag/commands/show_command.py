"""`ntkdiag show RUN`: the latest numbers of a run in the terminal, once or while it grows."""

import sys
import time
from typing import Annotated

import typer

from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, RunArgument, StreamOption, examples
from ntkdiag.commands.streams_of_run import opened

EXAMPLES = examples(
    "ntkdiag show run",
    "ntkdiag show run --follow",
    "ntkdiag show run/watch.jsonl --follow --every 10",
)
WIDTH = 80  # where it is not a terminal that is printed to


def show(
    run: RunArgument,
    stream: StreamOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep it up to date while it is written to, to Ctrl-C.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    as_json: JsonOption = False,
) -> None:
    """Show the latest numbers of a run, and how they went.

    With --json the last row of each stream is printed. Where there is no terminal,
    it is printed once.
    """
    from rich.console import Console, Group
    from rich.live import Live

    from ntkdiag.commands.run_view import LiveRun

    found, names = opened(run, stream, "show")
    # A stream that begins later is shown, too, unless one is asked for.
    is_one = stream is not None or run.is_file()
    reader = LiveRun(found, names if is_one else None)
    if as_json:
        streams = {view.name: view.to_dict() for view in reader.views()}
        print_json({"root": f"{found.root}", "streams": streams})
        return
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else WIDTH)
    if not follow or not is_terminal:
        console.print(Group(*reader.views()))
        return
    try:
        with Live(Group(*reader.views()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(Group(*reader.views()), refresh=True)
    except KeyboardInterrupt:
        return
