"""Progress of long work: a bar on a terminal, lines elsewhere on request.

    with under_way("comparing", steps=4) as work:
        ...
        work.advance()

1. The first step that is done after `PATIENCE` seconds opens the bar: shorter work shows nothing,
   and does not import rich.
2. Work inside other work, such as a kernel of a comparison, has no bar of its own: it fills the
   step of the outer work that is under way.
3. Long work is announced before it begins, in one line that stays: `announce`.

The bar is on standard error, so that what is printed can be piped, and is gone when the work ends,
also by an exception. Work inside a `jax.jit` of the caller is a part of the caller's program, and
has none.
"""

import contextlib
import contextvars
import sys
import time
from collections.abc import Iterator

PATIENCE = 2.0  # seconds of work before anything is shown, and between two lines


class Work:
    """Work under way: how many of its steps are done, with the part of the one under way."""

    def __init__(self, text: str, steps: int | float, outer: "Work | None"):
        self.text = text
        self.steps = max(steps, 1e-9)  # work of no steps is done
        self.outer = outer
        self.done = 0.0
        self.shown = 0.0  # never falls, also when inner work began the same step again
        self.begun = time.perf_counter()
        self.is_shown = False
        self.view: _View | None = None

    def advance(self, steps: int | float = 1.0) -> None:
        """Count steps as done."""
        self.done += steps
        self._show(self.done)

    def reach(self, step: int | float) -> None:
        """Say that all steps up to this one are done."""
        self.advance(step - self.done)

    def _show(self, position: float) -> None:
        """Hand the share that is done to the outer work, or to the view."""
        self.shown = max(self.shown, min(position / self.steps, 1.0))
        if self.outer is not None:
            self.outer._show(self.outer.done + self.shown)
            return
        if not self.is_shown or time.perf_counter() - self.begun < PATIENCE:
            return
        # For example another bar on this terminal: the work continues without ours.
        with contextlib.suppress(Exception):
            self.view = self.view or _View(self.begun)
            self.view.update(self.text, self.shown)


_current: contextvars.ContextVar[Work | None] = contextvars.ContextVar("work", default=None)


@contextlib.contextmanager
def under_way(text: str, steps: int | float = 1, show: bool | None = None) -> Iterator[Work]:
    """Show how far work has come; `show` says always, never, or on a terminal alone (None)."""
    outer = _current.get()
    work = Work(text, steps, outer)
    if outer is None and sys.stderr is not None:
        work.is_shown = sys.stderr.isatty() if show is None else show
    # With show=False inner work is quiet, too: it finds this work, which has no view.
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)
        if work.view is not None:
            work.view.close()


def announce(text: str, show: bool | None = None) -> None:
    """Announce long work that is not inside other work, unless progress is switched off."""
    if show is not False and _current.get() is None and sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


class _View:
    """A bar on a terminal, gone when it is closed; elsewhere a line now and then."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._next = 0.0
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=1.0)
            self._bar.start()

    def update(self, text: str, share: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=share)
            return
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + PATIENCE
            seconds = round(now - self._begun)
            clock = f"{seconds // 60}:{seconds % 60:02d}"
            print(f"{text}: {share:.0%} after {clock}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
