"""The bars that show progress: drawn by rich on a terminal, by the browser in a notebook."""

import html
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn


class TerminalView:
    """A bar on standard error that disappears when it is closed."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        # Without a total it pulses: of the first step nobody knows how long it takes.
        self._task = self._bar.add_task("", total=None, left="")

    def update(self, text: str, share: float, left: str) -> None:
        """Move the bar, and draw it the first time."""
        total = 1.0 if share > 0 else None
        self._bar.update(self._task, description=text, total=total, completed=share, left=left)
        self._bar.start()  # nothing happens where it was started before

    def close(self) -> None:
        """Take the bar away."""
        self._bar.stop()


class NotebookView:
    """A progress element under the cell, emptied when it is closed.

    The bar of rich needs ipywidgets there; this needs nothing but the notebook.
    """

    def __init__(self) -> None:
        from IPython.display import display

        self._handle: Any = display(_page(""), raw=True, display_id=True)

    def update(self, text: str, share: float, left: str) -> None:
        """Move the bar."""
        value = f' value="{share:.4f}"' if share > 0 else ""  # without one the browser pulses
        words = f"{html.escape(text)} {share:.0%} {left}".rstrip()
        self._handle.update(_page(f"<progress{value}></progress> {words}"), raw=True)

    def close(self) -> None:
        """Empty the output."""
        self._handle.update(_page(""), raw=True)


def _page(content: str) -> dict[str, str]:
    """An output of a notebook."""
    return {"text/html": content, "text/plain": ""}
