"""The folder a demo run writes to, and nothing else."""

import dataclasses
import json
import pathlib

import jax

from ntkdiag import errors
from ntkdiag.demo.demo_settings import DemoSettings


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """Paths of one run.

    Attributes:
        root: The folder.
    """

    root: pathlib.Path

    @property
    def checkpoints(self) -> pathlib.Path:
        """Root of the Orbax CheckpointManager."""
        return self.root / "checkpoints"

    @property
    def report(self) -> pathlib.Path:
        """The report."""
        return self.root / "report.html"

    def write_settings(self, settings: DemoSettings) -> None:
        """Write the settings of the run, and the version of JAX, to ``run.json``."""
        content = {**dataclasses.asdict(settings), "jax": jax.__version__}
        (self.root / "run.json").write_text(json.dumps(content, indent=1) + "\n")


def make_run_directory(out: pathlib.Path | None, default: str) -> RunDirectory:
    """Make a fresh folder; an existing one is never written to.

    Args:
        out: Folder asked for; None takes ``runs/<default>``, or the first free of
            ``runs/<default>-2``, ``-3``, ...
        default: Name of the run.

    Returns:
        The new, empty folder.

    Raises:
        InvalidInputError: `out` exists.
    """
    if out is None:
        out = _first_free(pathlib.Path("runs"), default)
    # Fails where the folder exists, also when another run made it a moment ago.
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise errors.InvalidInputError(
            call=f"ntkdiag demo --out {out}",
            expected="a folder that does not exist yet",
            got=f"{type(error).__name__}: {error.strerror}",
            do="Choose another folder, or remove this one: a run is never overwritten.",
        ) from error
    return RunDirectory(out)


def _first_free(parent: pathlib.Path, default: str) -> pathlib.Path:
    """The first of default, default-2, default-3, ... that does not exist."""
    path = parent / default
    number = 1
    while path.exists():
        number += 1
        path = parent / f"{default}-{number}"
    return path
