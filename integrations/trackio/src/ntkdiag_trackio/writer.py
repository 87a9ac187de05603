"""A writer to runs of Trackio.

Trackio keeps its current run in a context variable, which threads do not share: the run of the
script is looked for where the writer is made, and where a monitor hands a measurement over.
"""

import contextvars
import functools
import json
from collections.abc import Mapping
from typing import Any

import trackio
from trackio import context_vars

from ntkdiag.monitor import Finding, TrackerWriter


class TrackioWriter(TrackerWriter):
    """Writes to the run that the script has begun with `trackio.init`, else to one of its own.

    Numbers are logged under names such as ``ntkdiag/trace``, at the step of training. What they
    mean, the convention record, is in the config of a run of its own; the config of the script's
    run cannot be added to, so there it is a text, ``ntkdiag/record``. Findings become alerts of
    Trackio with the level WARN.

    Args:
        project: Of a run of its own.
        name: Of a run of its own; None lets Trackio find one.
        prefix: Put before every name.
        init: More arguments of `trackio.init` for a run of its own: `space_id`, `group`, ...
    """

    tracker = "trackio"

    def __init__(
        self,
        project: str = "ntkdiag",
        name: str | None = None,
        *,
        prefix: str = "ntkdiag/",
        **init: Any,
    ) -> None:
        super().__init__(prefix=prefix)
        # Nobody looks at the output of the thread that a writer has.
        self.init = {"project": project, "name": name, "embed": False, **init}
        self._run_here = context_vars.current_run.get()
        self._run: trackio.Run | None = None
        self._is_own = False
        self._texts: dict[str, trackio.Markdown] = {}  # to go with the next numbers

    def open_run(self, run_id: str | None, record: Mapping[str, Any]) -> str:
        """Take the run of the script, or begin or resume one, which goes by its name."""
        run_of_script = self._run_here or context_vars.current_run.get()
        self._is_own = run_of_script is None
        self._run = self._begun(run_id, record) if run_of_script is None else run_of_script
        return self._run.name

    def log_record(self, record: Mapping[str, Any]) -> None:
        """Have the record logged as a text to the run of the script."""
        if not self._is_own:
            text = f"```\n{json.dumps(dict(record), indent=2)}\n```"
            self._texts[f"{self.prefix}record"] = trackio.Markdown(text)

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log the numbers of one step."""
        self._open_run.log({**scalars, **self._texts}, step=step)
        self._texts = {}

    def log_finding(self, finding: Finding) -> None:
        """Raise an alert of Trackio, which may send it to a webhook."""
        self._open_run.alert(
            title=f"ntkdiag: {finding.id}",
            text=str(finding),
            level=trackio.AlertLevel.WARN,
            step=None if finding.step is None else int(finding.step),
        )

    def close_run(self) -> None:
        """End the run, unless the script has begun it."""
        if self._is_own:
            self._open_run.finish()

    @property
    def _open_run(self) -> trackio.Run:
        """The run that is written to."""
        assert self._run is not None
        return self._run

    def _begun(self, name: str | None, record: Mapping[str, Any]) -> trackio.Run:
        """A run of its own, which is nobody's current run."""
        config = {self.record_name: dict(record), **self.init.get("config", {})}
        init = functools.partial(trackio.init, **{**self.init, "config": config})
        context = contextvars.copy_context()
        if name is None:
            return context.run(init)
        try:
            return context.run(init, name=name, resume="must")
        except ValueError as error:
            self.warn(f"{error}; it begins anew")
            return context.run(init, name=name, resume="allow")
