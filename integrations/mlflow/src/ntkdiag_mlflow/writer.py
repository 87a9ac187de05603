"""A writer to runs of MLflow.

All is logged by the id of a run through `MlflowClient`: the functions of `mlflow` itself know the
active run of their own thread only, and writers have threads of their own.
"""

import contextlib
import os
import posixpath
import re
import time
from collections.abc import Mapping
from typing import Any

import mlflow
import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import fluent
from mlflow.tracking.context import registry

from ntkdiag.monitor import Finding, TrackerWriter

ANSWER_SECONDS = 5.0  # that a server has, when a run is opened or closed


class MlflowWriter(TrackerWriter):
    """Writes to the run that the script has active, else to one of its own.

    Numbers are metrics such as ``ntkdiag/trace``, at the step of training. Of what they mean,
    the convention record, single values are params such as ``ntkdiag/record/loss``, and all is the
    artifact ``ntkdiag/record.json``. The last finding of each id is a tag, such as
    ``ntkdiag/finding/margin-rises``.

    A character that MLflow does not take in a name becomes an underscore.

    Args:
        experiment: Name of the experiment of a run of its own, made if need be; None is the one
            that is set in MLflow.
        name: Of a run of its own; None lets MLflow find one.
        prefix: Put before every name.
    """

    tracker = "mlflow"

    def __init__(
        self,
        experiment: str | None = None,
        name: str | None = None,
        *,
        prefix: str = "ntkdiag/",
    ) -> None:
        super().__init__(prefix=prefix)
        self.experiment = experiment
        self.name = name
        # The run of the script that makes this writer, if it has begun one already.
        self._active_here = mlflow.active_run()
        self._run_id_open = ""
        self._is_own = False
        self._client: MlflowClient | None = None

    def open_run(self, run_id: str | None, record: Mapping[str, Any]) -> str:
        """Take the run of the script, or begin or resume one."""
        _require_answer()
        self._client = MlflowClient()
        active_run_id = self._active_run_id()
        self._is_own = active_run_id is None
        self._run_id_open = active_run_id or self._resumed(run_id) or self._begun()
        return self._run_id_open

    def log_record(self, record: Mapping[str, Any]) -> None:
        """Log the record as params and as an artifact."""
        client = self._open_client
        # A param cannot be changed: where training goes on, those of its beginning stay.
        logged = client.get_run(self._run_id_open).data.params
        params = {
            _allowed(f"{self.prefix}record/{key}"): str(value)
            for key, value in record.items()
            if isinstance(value, str | int | float)
        }
        new = [Param(key, value) for key, value in params.items() if key not in logged]
        client.log_batch(self._run_id_open, params=new)
        try:
            client.log_dict(self._run_id_open, dict(record), f"{self.record_name}/record.json")
        except Exception as error:  # artifacts are stored elsewhere: the numbers may well be taken
            self.warn(f"the record is no artifact: {type(error).__name__}: {error}")

    def log_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Log the numbers of one step."""
        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), number, now, step) for name, number in scalars.items()]
        self._open_client.log_batch(self._run_id_open, metrics=metrics)

    def log_finding(self, finding: Finding) -> None:
        """Keep a finding as a tag."""
        tag = _allowed(f"{self.prefix}finding/{finding.id}")
        self._open_client.set_tag(self._run_id_open, tag, str(finding))

    def close_run(self) -> None:
        """End the run, unless the script has begun it."""
        if self._is_own:
            _require_answer()
            self._open_client.set_terminated(self._run_id_open)

    @property
    def _open_client(self) -> MlflowClient:
        """The client of the run that is open."""
        assert self._client is not None
        return self._client

    def _active_run_id(self) -> str | None:
        """The run of the script, also where that began after this writer was made."""
        # The public `active_run` looks at its own thread only.
        run = self._active_here or fluent._get_latest_active_run()
        # `mlflow run` names the run that the script is going to begin.
        return os.environ.get("MLFLOW_RUN_ID") if run is None else run.info.run_id

    def _resumed(self, run_id: str | None) -> str | None:
        """Go on in a run; None where there is none of this id."""
        if run_id is None:
            return None
        try:
            is_deleted = self._open_client.get_run(run_id).info.lifecycle_stage == "deleted"
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            is_deleted = True
        if is_deleted:
            self.warn(f"run {run_id} is no longer in {mlflow.get_tracking_uri()}; a new one begins")
            return None
        self._open_client.update_run(run_id, status="RUNNING")
        return run_id

    def _begun(self) -> str:
        """Begin a run, with the tags that MLflow gives its own: user, source, commit."""
        run = self._open_client.create_run(
            self._experiment_id(), run_name=self.name, tags=registry.resolve_tags()
        )
        return run.info.run_id

    def _experiment_id(self) -> str:
        """The experiment of a run of its own, in the order that MLflow looks for it."""
        name = self.experiment
        if name is None:
            # `mlflow.set_experiment` sets the first of them.
            if "MLFLOW_EXPERIMENT_ID" in os.environ:
                return os.environ["MLFLOW_EXPERIMENT_ID"]
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = self._open_client.get_experiment_by_name(name)
        if experiment is None:
            return self._open_client.create_experiment(name)
        return experiment.experiment_id


def _require_answer() -> None:
    """Raise where a tracking server cannot be reached; MLflow itself tries for minutes."""
    uri = mlflow.get_tracking_uri()
    if uri.startswith(("http:", "https:")):
        # One whose certificate is not trusted answers, too; MLflow may be told to trust it.
        with contextlib.suppress(requests.exceptions.SSLError):
            requests.head(uri, timeout=ANSWER_SECONDS)


def _allowed(name: str) -> str:
    """A name as MLflow takes it: letters, digits and ``_-. /``, and a path without detours."""
    return posixpath.normpath(re.sub(r"[^/\w.\- ]", "_", name)).lstrip("/")
