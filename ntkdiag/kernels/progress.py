"""A progress bar for long work."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(total: int, show: bool) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each tile; it draws a bar, or nothing."""
    if not show:
        yield lambda: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        task = progress.add_task("NTK tiles", total=total)
        yield lambda: progress.advance(task)
