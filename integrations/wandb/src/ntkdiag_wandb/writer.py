"""A writer to runs of Weights & Biases.

1. A run that the script has begun is written to, and left open. Otherwise one is begun, which is
   independent of `wandb.run`, and ended.
2. W&B drops what is logged at a step below its own. A run of the script therefore gets the step of
   training as a metric, and charts have that on their x-axis; a run of ours has it as W&B's step,
   too.
3. Without a server or a login the run is kept on disk, for `wandb sync`.
"""

import weakref
from collections.abc import Mapping
from typing import Any

import wandb

from ntkdiag.monitor import Finding, TrackerWriter

# Seconds that a server has to answer, at the beginning and at the end of a run of ours. A monitor
# waits for 10 s at the end of a training: till then the run is on disk.
INIT_TIMEOUT = 8.0
FINISH_TIMEOUT = 30.0
MOST_TITLE = 64  # characters of the title of an alert, as W&B has it

# Run of the script -> the row that was written to last, and the step of training of its numbers.
_last: weakref.WeakKeyDictionary[wandb.Run, tuple[int, int]] = weakref.WeakKeyDictionary()


class WandbWriter(TrackerWriter):
    """Writes to the run that the script has begun with `wandb.init`, else to one of its own.

    Numbers are logged under names such as ``ntkdiag/trace``, with ``ntkdiag/step``, the step of
    training, as their x-axis. What they mean, the convention record, goes into the config of the
    run, findings become alerts of W&B with the level WARN.

    A run of its own that cannot be had from the server, because nobody is logged in or nothing
    answers, is kept on disk, and a warning says so: `wandb sync` sends it later. Nobody is asked
    for a key.

    Args:
        project: Of a run of its own; None is what W&B takes then.
        name: Of a run of its own; None lets W&B find one.
        prefix: Put before every name.
        step_metric: The metric that has the step of training, on the x-axis of all charts. One
            that the script logs, too, puts its charts on the same axis.
        init: More arguments of `wandb.init` for a run of its own: `mode`, `dir`, `group`, `id`, ...
    """

    tracker = "wandb"

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        *,
        prefix: str = "ntkdiag/",
        step_metric: str = "ntkdiag/step",
        **init: Any,
    ) -> None:
        super().__init__(prefix=prefix)
        self.step_metric = step_metric
        self.init = {"project": project, "name": name, **init}
        self._run: wandb.Run | None = None
        self._is_own = False

    def open_run(self, run_id: str | None, record: Mapping[str, Any]) -> str:
        """Take the run of the script, or begin or resume one."""
        self._is_own = wandb.run is None
        self._run = self._begun(run_id) if self._is_own else wandb.run
        return self._open_run.id

    def log_record(self, record: Mapping[str, Any]) -> None:
        """Put the record into the config, and the step of training on the x-axes."""
        run = self._open_run
        run.define_metric(self.step_metric, hidden=True)
        if self.prefix:  # without one the script's own numbers would be meant, too
            run.define_metric(f"{self.prefix}*", step_metric=self.step_metric)
        run.config.update({self.record_name: dict(record)}, allow_val_change=True)

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log the numbers of one step."""
        run = self._open_run
        row = {self.step_metric: step, **scalars}
        if self._is_own:
            run.log(row, step=step)
            return
        # The numbers join the row that the script is at, so that its steps stay what they are. A
        # row with numbers of an earlier step of training is ended first.
        last_row, last_step = _last.get(run, (None, step))
        if last_row == run.step and last_step != step:
            run.log({}, commit=True)
        run.log(row, commit=False)
        _last[run] = (run.step, step)

    def log_finding(self, finding: Finding) -> None:
        """Raise an alert of W&B, which may send it by mail or Slack."""
        title = f"ntkdiag: {finding.id}"[:MOST_TITLE]
        self._open_run.alert(title=title, text=str(finding), level="WARN")

    def close_run(self) -> None:
        """End the run, unless the script has begun it."""
        if self._is_own:
            self._open_run.finish()

    @property
    def _open_run(self) -> wandb.Run:
        """The run that is written to."""
        assert self._run is not None
        return self._run

    def _begun(self, run_id: str | None) -> wandb.Run:
        """A run of its own: from the server, else on disk."""
        # A login would wait for somebody to type a key, on a thread that nobody sees.
        mode = self.init.get("mode") or wandb.setup().settings.mode
        if mode == "online" and not wandb.login(prompt=False, verify=False):
            return self._on_disk(run_id, "nobody is logged in")
        try:
            return self._init(run_id)
        except wandb.Error as error:
            reason = _in_a_line(error)
        if run_id is not None and "timed out" not in reason.lower():
            # W&B gives no id twice: that of a run that was deleted is lost.
            try:
                run = self._init(None)
            except wandb.Error as error:
                reason = _in_a_line(error)
            else:
                self.warn(f"run {run_id} cannot be resumed ({reason}); {run.id} is new")
                return run
        return self._on_disk(run_id, reason)

    def _on_disk(self, run_id: str | None, reason: str) -> wandb.Run:
        """A run of its own that is kept on disk."""
        run = self._init(run_id, mode="offline")
        self.warn(
            f'{reason}. The run is kept on disk: "wandb sync {run.settings.sync_dir}" sends it.'
        )
        return run

    def _init(self, run_id: str | None, **init: Any) -> wandb.Run:
        """Begin a run beside those of the script, or go on in the one that has the id."""
        settings = wandb.Settings(init_timeout=INIT_TIMEOUT, finish_timeout=FINISH_TIMEOUT)
        resumed = {} if run_id is None else {"id": run_id, "resume": "allow"}
        arguments = {"settings": settings, "reinit": "create_new", **self.init, **resumed, **init}
        return wandb.init(**arguments)


def _in_a_line(error: Exception) -> str:
    """The text of an error without line breaks and the full stop."""
    return " ".join(str(error).split()).rstrip(".")
