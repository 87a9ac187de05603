"""How far long work has come, and how long it will still take: on a terminal and in a notebook.

    with under_way("comparing", steps=4) as work:
        ...
        work.advance()

1. Work shorter than `PATIENCE` seconds shows nothing: a clock opens the bar, and only then is the
   library imported that draws it.
2. Work inside other work, such as a kernel of a comparison, has no bar of its own: it fills the
   step of the outer work that is under way.
3. Output that is neither a terminal nor a notebook, a log for one, gets a line for every
   `QUIET` seconds, also while nothing is finished: long work is never silent for minutes. Where
   progress is asked for it gets more of them.
4. What is known to take long says so before it begins, in one line that stays: `announce`.

The bar is on standard error, so that what is printed can be piped, and is gone when the work ends,
also by an exception. Work inside a `jax.jit` of the caller is a part of the caller's program, and
has none.
"""

import contextlib
import contextvars
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from ntkdiag import errors
from ntkdiag.display import shortened

PATIENCE = 2.0  # seconds of work before anything is shown, and between two lines that are asked for
QUIET = 25.0  # seconds of silence in a log, before the first line and between two


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
            _clock.update(self.view)

    def left(self) -> str:
        """The time that is left if the rest goes on as what was done; empty at first.

        The first part does not count: it compiles, and took longer than others will.
        """
        if self.first is None or self.shown <= self.first[1]:
            return ""
        begun, share_before = self.first
        elapsed = time.perf_counter() - begun
        seconds = elapsed * (1 - self.shown) / (self.shown - share_before)
        return f"{minutes(seconds)} left"


def minutes(seconds: float) -> str:
    """Minutes and seconds, as a clock has them."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02d}"


@dataclasses.dataclass(eq=False)
class _Timed:
    """Work whose view is opened when it has lasted long enough.

    Attributes:
        work: The work.
        make: Makes the view.
        due: When to look at it next, as `time.monotonic` counts.
        view: None until it is opened.
    """

    work: Work
    make: Callable[[], ProgressView]
    due: float
    view: ProgressView | None = None

    def show(self) -> None:
        """Show where the work stands, once the view is open."""
        if self.view is not None:
            self.view.update(self.work.text, self.work.shown, self.work.left())


class _Clock:
    """One thread that looks at all work when it is due, and then every `QUIET` seconds.

    One program of XLA may take minutes, in which no step is done; and a thread for each work would
    take longer to start than a small kernel takes. It ends when there was no work for a while, and
    a process that ends does not wait for it.
    """

    def __init__(self) -> None:
        self._timed: set[_Timed] = set()
        self._changed = threading.Condition()  # its lock is that of all views, too
        self._thread: threading.Thread | None = None
        self._wakes = 0.0

    def add(self, timed: _Timed) -> None:
        """Look at this one, too."""
        with self._changed:
            self._timed.add(timed)
            if self._thread is None or not self._thread.is_alive():
                self._wakes = timed.due
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            elif timed.due < self._wakes:
                self._changed.notify()

    def update(self, timed: _Timed) -> None:
        """Some of its work is done."""
        with self._changed:
            timed.show()

    def remove(self, timed: _Timed) -> None:
        """Look at it no more, and close its view."""
        with self._changed:
            self._timed.discard(timed)
            if timed.view is not None:
                timed.view.close()

    def _run(self) -> None:
        """Sleep until some work is due, look at it, and again."""
        with self._changed:
            while True:
                was_idle = not self._timed
                idle_until = time.monotonic() + PATIENCE
                self._wakes = min((timed.due for timed in self._timed), default=idle_until)
                self._changed.wait(max(0.0, self._wakes - time.monotonic()))
                if was_idle and not self._timed:
                    self._thread = None
                    return
                for timed in self._timed:
                    if timed.due <= time.monotonic():
                        self._look(timed)

    def _look(self, timed: _Timed) -> None:
        """Open the view the first time, and show where the work stands."""
        timed.due = time.monotonic() + QUIET
        # Another bar on this terminal, for one: the work goes on without ours.
        with contextlib.suppress(Exception):
            timed.view = timed.view or timed.make()
            timed.show()


_clock = _Clock()

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
            never; None on a terminal and in a notebook, and in a log where it takes long.
        fills: How many steps of the outer work it takes, where there is such.
    """
    outer = _current.get()
    work = Work(text, steps, outer, fills)
    if outer is None:
        make = _view_for(show)
        # A log that did not ask for progress is told of long work alone.
        is_unasked_log = make is _RareLinesView
        if make is not None:
            patience = QUIET if is_unasked_log else PATIENCE
            work.view = _Timed(work, make, due=time.monotonic() + patience)
            _clock.add(work.view)
    # With show=False inner work is quiet, too: it finds this work, which has no view.
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)
        if work.view is not None:
            _clock.remove(work.view)


def _view_for(show: bool | None) -> Callable[[], ProgressView] | None:
    """What makes the view; None where nothing is to be shown."""
    if show is not None and not isinstance(show, bool):
        raise errors.InvalidInputError(
            argument="progress=...",
            expected="progress= as True, False or None",
            got=shortened(show),
            do="None shows it on a terminal and in a notebook.",
        )
    if show is False:
        return None
    if _in_a_notebook():
        return _notebook_view
    if sys.stderr is not None and sys.stderr.isatty():
        return _terminal_view
    if sys.stderr is None:
        return None
    return _LinesView if show else _RareLinesView


def announce(text: str, show: bool | None = None) -> None:
    """Say on standard error what is about to take long, unless progress is switched off.

    Inside other work nothing is said: that has said what it takes.
    """
    if show is not False and _current.get() is None and sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


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
    """A line now and then, for files and logs that asked for them."""

    def __init__(self) -> None:
        self._pause = self._seconds_between()
        self._begun = time.perf_counter() - self._pause  # the view is opened so much later
        self._next = 0.0

    def update(self, text: str, share: float, left: str) -> None:
        """Print a line, unless the last one is recent."""
        now = time.perf_counter()
        if now < self._next:
            return
        # A little less than the pause: the thread that looks at the work may come early.
        self._next = now + 0.9 * self._pause
        so_far = f"{share:.0%} after {minutes(now - self._begun)}"
        print(", ".join(filter(None, [f"{text}: {so_far}", left])), file=sys.stderr, flush=True)

    def _seconds_between(self) -> float:
        """Seconds before the first line, and between two."""
        return PATIENCE

    def close(self) -> None:
        """Lines stay."""


class _RareLinesView(_LinesView):
    """Lines as far apart as silence may be long, for logs that did not ask."""

    def _seconds_between(self) -> float:
        return QUIET
