"""Two sides of a comparison beside each other: two checkpoints, which tables tell apart."""

import dataclasses
import os

from ntkdiag import errors
from ntkdiag.checkpoints.location import finished_steps
from ntkdiag.comparison.load import Side, split_step
from ntkdiag.comparison.restore import TWO_MODELS
from ntkdiag.comparison.sources import Classified, Model, classified
from ntkdiag.comparison.stored_checkpoint import STREAM
from ntkdiag.path_argument import as_path
from ntkdiag.runs.run_stream import RunStream


def refuse_run_directory(source: Classified) -> None:
    """Refuse a run directory of `track`, which holds kernels and outputs but no parameters."""
    if source.kind != "path":
        return
    path, _ = split_step(source.value)
    root = as_path(path)
    if RunStream(root, STREAM).path.is_file() and not finished_steps(root):
        raise errors.CheckpointError(
            expected="a checkpoint, which holds parameters",
            got=f"{path!r}, a run directory of track, which holds kernels and outputs alone",
            do=f'Write ntkdiag.open_run({path!r}).tracked.matrix("distance_centred").',
        )


def require_one_model(model: Model) -> Classified:
    """The model that both sides share; a pair of models is refused."""
    given = classified(model)
    if given.kind == "other" and isinstance(model, tuple | list):
        raise errors.InvalidInputError(
            argument="model=...",
            expected="one model, whose parameters both sides hold",
            got=f"a {type(model).__name__} of {len(model)}",
            do=TWO_MODELS,
        )
    return given


def require_two(a: Side, b: Side) -> tuple[Side, Side]:
    """Refuse two sides that are one checkpoint; give them labels that tell them apart."""
    if _are_one_checkpoint(a, b):
        raise errors.InvalidInputError(
            expected="two different checkpoints",
            got=f"{a.path} {a.label} twice",
            do='Two steps of one manager root are "root@0" and "root@100".',
        )
    if a.label == b.label:
        a = dataclasses.replace(a, label=f"A: {a.label}")
        b = dataclasses.replace(b, label=f"B: {b.label}")
    return a, b


def _are_one_checkpoint(a: Side, b: Side) -> bool:
    """Whether two sides are the same step of the same path."""
    if a.path is None or b.path is None:
        return False
    return _absolute(a.path) == _absolute(b.path) and a.step == b.step


def _absolute(path: str) -> str:
    """A path by which two names of one directory are known as the same, links included."""
    return os.path.realpath(os.path.expanduser(path))
