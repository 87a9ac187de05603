"""How far long work has come, and how long it will still take: on a terminal and in a notebook.

    with under_way("comparing", steps=4) as work:
        ...
        work.advance()

1. Work shorter than `PATIENCE` seconds shows nothing: a timer opens the bar, and only then is the
   library imported that draws it.
2. Work inside other work, such as a kernel of a comparison, has no bar of its own: it fills the
   step of the outer work that is under way.
3. Output that is neither a terminal nor a notebook gets nothing, unless it is asked for: then it
   gets a line now and then.

The bar is on standard error, so that what is printed can be piped, and is gone when the work ends,
also by an exception. Work inside a `jax.jit` of the caller is a part of the caller's program, and
has none.
"""

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

PATIENCE = 2.0  # seconds of work before anything is shown, and between two lines


@runtime_checkable
class ProgressView(Protocol):
    """Where progress is shown, from the moment it is opened."""

    def update(self, text: str, share: float, left: str) -> None:
        """Show that a share of the work is done, and the time that is left."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...


class Work:
    """Work under way: how many of its steps are done, with the part of the one under way."""

    def __init__(self, text: str, steps: int | float, outer: "Work | None", fills: int | float):
        self.text = text
        self.steps = max(steps, 1e-9)  # work of no steps is done
        self.outer = outer
        self.fills = fills  # steps of the outer work
        self.done = 0.0
        self.first: tuple[float, float] | None = None  # when the first part was done, and how much
        self.shown = 0.0  # never falls, also when inner work began the same step again
        self.view: _Timed | None = None

    def advance(self, steps: int | float = 1.0) -> None:
        """Count steps as done."""
        self.done += steps
        self._show(self.done)

    def reach(self, step: int | float) -> None:
        """Say that all steps up to this one are done."""
        self.advance(step - self.done)

    def _show(self, position: float) -> None:
        """Hand the share that is done to the outer work, or to the view."""
        share = min(position / self.steps, 1.0)
        self.shown = max(self.shown, share)
        if self.first is None and self.shown > 0:
            self.first = (time.perf_counter(), self.shown)
        if self.outer is not None:
            self.outer._show(self.outer.done + self.fills * self.shown)
        elif self.view is not None:
            self.view.update()

    def left(self) -> str:
        """The time that is left if the rest goes on as what was done; empty at first.

        The first part does not count: it compiles, and took longer than others will.
        """
        if self.first is None or self.shown <= self.first[1]:
            return ""
        begun, share_before = self.first
        elapsed = time.perf_counter() - begun
        seconds = round(elapsed * (1 - self.shown) / (self.shown - share_before))
        return f"{seconds // 60}:{seconds % 60:02d} left"


class _Timed:
    """A view that is opened when the work has lasted long enough, by a thread of its own."""

    def __init__(self, work: Work, make: Callable[[], ProgressView]):
        self._work = work
        self._make = make
        self._view: ProgressView | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE, self._open)
        self._timer.daemon = True  # a process that ends does not wait for it
        self._timer.start()

    def update(self) -> None:
        """Show where the work stands, once the view is open."""
        with self._lock:
            if self._view is not None:
                self._view.update(self._work.text, self._work.shown, self._work.left())

    def close(self) -> None:
        """Close the view, or never open it."""
        self._timer.cancel()
        with self._lock:
            self._is_closed = True
            if self._view is not None:
                self._view.close()

    def _open(self) -> None:
        with self._lock:
            if not self._is_closed:
                # Another bar on this terminal, for one: the work goes on without ours.
                with contextlib.suppress(Exception):
                    self._view = self._make()
        self.update()


_current: contextvars.ContextVar[Work | None] = contextvars.ContextVar("work", default=None)


@contextlib.contextmanager
def under_way(
    text: str, steps: int | float = 1, show: bool | None = None, *, fills: int | float = 1
) -> Iterator[Work]:
    """Show how far work has come: say `advance()` after each of its steps, or `reach(step)`.

    Args:
        text: What is done, in a word or two.
        steps: How many steps it takes; of one step only the time that is left cannot be told.
        show: For work that is not inside other work: True shows it wherever output goes, False
            never; None on a terminal and in a notebook.
        fills: How many steps of the outer work it takes, where there is such.
    """
    outer = _current.get()
    work = Work(text, steps, outer, fills)
    if outer is None:
        make = _view_for(show)
        if make is not None:
            work.view = _Timed(work, make)
    # With show=False inner work is quiet, too: it finds this work, which has no view.
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)
        if work.view is not None:
            work.view.close()


def _view_for(show: bool | None) -> Callable[[], ProgressView] | None:
    """What makes the view; None where nothing is to be shown."""
    if show is False:
        return None
    if _in_a_notebook():
        return _notebook_view
    if sys.stderr is not None and sys.stderr.isatty():
        return _terminal_view
    return _LinesView if show else None


def _in_a_notebook() -> bool:
    """Whether this is the kernel of a notebook; IPython is looked up, not imported."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _terminal_view() -> ProgressView:
    from ntkdiag.progress_bar import TerminalView  # imports rich

    return TerminalView()


def _notebook_view() -> ProgressView:
    from ntkdiag.progress_bar import NotebookView  # imports rich

    return NotebookView()


class _LinesView:
    """A line now and then, for files and logs."""

    def __init__(self) -> None:
        self._next = 0.0

    def update(self, text: str, share: float, left: str) -> None:
        """Print a line, unless the last one is recent."""
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + PATIENCE
        print(f"{text}: {share:.0%}  {left}".rstrip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Lines stay."""
