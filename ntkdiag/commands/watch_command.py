"""`ntkdiag watch RUN`: a run in the terminal while it grows."""

import sys
import time
from typing import Annotated

import typer

from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, RunArgument, StreamOption, examples
from ntkdiag.commands.streams_of_run import opened

EXAMPLES = examples(
    "ntkdiag watch run",
    "ntkdiag watch run/watch.jsonl --every 10",
    "ntkdiag watch run --stream track --once",
)
WIDTH = 80  # where it is not a terminal that is printed to


def watch(
    run: RunArgument,
    stream: StreamOption = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print it once, as where there is no terminal.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the latest numbers of a run, and how they went, while it is written to.

    Ctrl-C ends it. With --json the last row of each stream is printed once.
    """
    from rich.console import Console, Group
    from rich.live import Live

    from ntkdiag.commands.run_view import LiveRun

    found, names = opened(run, stream, "watch")
    # A stream that begins later is shown, too, unless one is asked for.
    is_one = stream is not None or run.is_file()
    reader = LiveRun(found, names if is_one else None)
    if as_json:
        streams = {view.name: view.to_dict() for view in reader.views()}
        print_json({"root": f"{found.root}", "streams": streams})
        return
    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else WIDTH)
    if once or not is_terminal:
        console.print(Group(*reader.views()))
        return
    try:
        with Live(Group(*reader.views()), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(Group(*reader.views()), refresh=True)
    except KeyboardInterrupt:
        return
