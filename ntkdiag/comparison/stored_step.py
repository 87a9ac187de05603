"""A step of a run directory as one side of a comparison: its kernel and outputs, no parameters.

`track(..., out=...)` stores both for every checkpoint, with a record of the probe and the
conventions they are of. What is measured beside it has to be of the same.
"""

import dataclasses
import math
import re
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.checkpoints.location import finished_steps
from ntkdiag.comparison.load import Side, split_step
from ntkdiag.comparison.sources import Classified
from ntkdiag.comparison.stored_checkpoint import (
    STREAM,
    convention_of,
    read_track,
    stored_array,
)
from ntkdiag.comparison.stored_probe import STREAM as PROBE_STREAM
from ntkdiag.descent import DescentLike
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import ReductionLike, recorded_reduction
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.measuring.settings import Settings, settings_of
from ntkdiag.path_argument import as_path
from ntkdiag.probe_batch import ProbeBatch, Probes
from ntkdiag.runs.run_stream import RunStream


@dataclasses.dataclass(frozen=True, eq=False)
class StoredStep:
    """One step of a run directory.

    Attributes:
        label: Its name in tables.
        path: The run directory as given.
        step: The step.
        record: What the numbers of the run mean.
        row: The numbers of the step by name.
        kernel: Its kernel.
        outputs: `[n *o]` its outputs on the probe.
        fixed_state: Where the arrays that are not parameters come from, in words.
        saved_dtypes: Of its parameters: none, as these are not stored.
        lacking: Fixed arrays that it does not hold: none is needed any more.
        left_out: Dictionaries that no model reads: it has none.
        output: Path of the array that is compared.
        set_aside: Paths of what else the model returned.
    """

    label: str
    path: str
    step: int
    record: dict[str, Any]
    row: dict[str, Any]
    kernel: Kernel
    outputs: Float[np.ndarray, "n *o"]
    fixed_state: str = "those of the checkpoint that was tracked"
    saved_dtypes: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    output: str = ""
    set_aside: tuple[str, ...] = ()

    @property
    def probe(self) -> dict[str, Any]:
        """The record of the probe of the kernel: "name", "examples", and hashes of "x" and "y"."""
        return self.record["probes"][0]  # those of `train` come first

    @property
    def reduction(self) -> ReductionLike:
        """The reduction of its kernel, as `ntk` takes it."""
        return recorded_reduction(self.record["reduction"])

    @property
    def model(self) -> str:
        """The model in words: its library, as its name is not stored."""
        return f"{self.record['model']['library']} model"

    @property
    def mode(self) -> str:
        """The mode of the model."""
        return self.record["model"]["mode"]

    @property
    def parameter_dtypes(self) -> list[str]:
        """The dtypes of the parameters, sorted."""
        described = self.record["parameters"].values()
        return sorted({text.partition("[")[0] for text in described})

    @property
    def n_parameters(self) -> int:
        """The number of parameters."""
        # "float32[3, 4]" has 12.
        shapes = [text.partition("[")[2] for text in self.record["parameters"].values()]
        return sum(math.prod(map(int, re.findall(r"\d+", shape))) for shape in shapes)


AnySide: TypeAlias = Side | StoredStep


def read_stored_step(source: Classified, label: str | None) -> StoredStep | None:
    """The step of a run directory that a path names, the last one without; None for others."""
    if source.kind != "path":
        return None
    path, step = split_step(source.value)
    root = as_path(path)
    # Where checkpoints lie beside them, they say more.
    if not RunStream(root, STREAM).path.is_file() or finished_steps(root):
        return None
    contents = read_track(root)
    if not contents.committed:
        raise _run_error(path, "one without a finished step", "Wait for the first, or track again.")
    if step is None:
        step = max(contents.committed)
    if not isinstance(step, int) or step not in contents.committed:
        steps = ", ".join(map(str, contents.committed))
        raise _run_error(path, f"no step {step}", f"Finished steps there: {steps}.")
    committed = contents.committed[step]
    record = contents.records[-1]
    kernel = stored_array(root, record, committed, "kernel")
    return StoredStep(
        label=label or f"step {step}",
        path=path,
        step=step,
        record=record,
        row=committed.row,
        kernel=Kernel(kernel, convention_of(committed.row, step)),
        outputs=stored_array(root, record, committed, "outputs"),
    )


def settings_of_run(
    a: StoredStep,
    b: StoredStep,
    reduction: ReductionLike,
    loss: LossLike | None,
    descent: DescentLike | None,
    memory: Memory | None,
) -> Settings:
    """Settings of a comparison of two steps without examples: the run has their labels."""
    probe = a.probe
    if (probe["name"], probe["x"]) != (b.probe["name"], b.probe["x"]):
        raise errors.InvalidInputError(
            expected="two steps that were tracked on the same examples",
            got=f"{_described(probe)} in {a.path}, {_described(b.probe)} in {b.path}",
            do="Kernels of other examples do not compare.",
        )
    labels = _stored_labels(a)
    if labels is None and (loss is not None or descent is not None):
        raise errors.InvalidInputError(
            expected="examples with their labels beside loss= and descent=",
            got=f"neither train= nor held_out=, and no labels in {a.path}",
            do="Write train=(x, y), with the examples that were tracked.",
        )
    # Of the examples themselves nothing is there but their number.
    x = jax.ShapeDtypeStruct((probe["examples"],), jnp.float32)
    batch = ProbeBatch(probe["name"], x, labels)
    is_train = probe["name"] == "train"
    probes = Probes(batch if is_train else None, None if is_train else batch)
    return settings_of(probes, reduction, loss, descent, memory)


def _stored_labels(step: StoredStep) -> np.ndarray | None:
    """The labels of the examples of a run; None where it was tracked without."""
    stream = RunStream(as_path(step.path), PROBE_STREAM)
    if not stream.path.is_file():
        return None
    contents = stream.read()
    committed = contents.committed.get(0)
    record = contents.records[-1] if contents.records else {}
    if committed is None or record.get("probes") != step.record["probes"]:
        return None
    return stream.array(committed, "labels") if "labels" in committed.sha256s else None


def require_probe(step: StoredStep, settings: Settings) -> None:
    """Refuse other examples than the kernel of a stored step is of, and any beside them."""
    probe = settings.probes.of_kernel
    if settings.probes.train is not None and settings.probes.held_out is not None:
        raise errors.InvalidInputError(
            argument="held_out=(x, y)",
            expected=f"the probe of the kernel alone beside a step of {step.path}",
            got="held-out examples, too, of which a run directory has no kernel",
            do="Leave held_out out.",
        )
    is_unknown = probe.digest is None  # of two steps of a run the kernels name their own
    if not is_unknown and (probe.name, probe.digest) != (step.probe["name"], step.probe["x"]):
        raise errors.InvalidInputError(
            argument=f"{probe.name}=(x, y)",
            expected=f"the examples that {step.path} was tracked on: {_described(step.probe)}",
            got=f"{probe.name}= with {probe.n_examples} of SHA-256 {str(probe.digest)[:12]}",
            do="Kernels of other examples do not compare.",
        )


def _described(probe: dict[str, Any]) -> str:
    """The probe of a run in words."""
    return f"{probe['name']}= with {probe['examples']} of SHA-256 {str(probe['x'])[:12]}"


def _run_error(path: str, got: str, do: str) -> errors.CheckpointError:
    """What is wrong with a run directory."""
    return errors.CheckpointError(expected=f"a run directory at {path!r}", got=got, do=do)
