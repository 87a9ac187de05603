"""A progress bar for long work."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(n_tiles: int, show: bool) -> Iterator[Callable[[], None]]:
    """A function to call after each tile; it draws a bar, or does nothing."""
    if not show:
        yield _nothing
        return
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        bar = progress.add_task("NTK tiles", total=n_tiles)
        yield lambda: progress.advance(bar)


def _nothing() -> None:
    """No bar is drawn."""
