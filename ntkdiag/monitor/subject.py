"""What a monitor measures: a function, its probes and a loss.

A subject is made once, before training, and measured many times:

1. `Subject.of` checks the arguments and copies the examples, so that the loop cannot change them;
2. `outputs` tells the shapes of the outputs, and refuses labels that do not fit them;
3. `verify` checks once that examples do not interact, as soon as there are concrete parameters;
4. instruments measure it in a `Situation`.

With a Functional, whose parameters are known, the first three happen where the subject is made;
with a plain function, where the first parameters come.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.independence import check_few
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.losses.targets import read_targets, require_labels_differ
from ntkdiag.models.functional import Functional
from ntkdiag.monitor.checks import require_outputs
from ntkdiag.probe_batch import ProbeBatch, Probes, shared_examples

# Examples that go through the model together, at most.
_GROUP = 16
# Groups are what the error bars of a sweep come from.
_FEWEST_GROUPS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """Everything that instruments measure besides the parameters.

    Attributes:
        f: A Functional, or a callable `f(params, x)`.
        x: Examples, N on the leading axis of every leaf.
        y: Their labels; None without.
        held_out: Examples that are not trained on, where they are given beside x.
        is_trained_on: Whether x is of the training set.
        n_shared: Held-out examples that are among those of x.
        loss: The loss that is trained; None where none was named.
        batch_size: Examples of one training step; None where it is not said.
        digest: SHA-256 of the examples, to tell two probes apart; None for traced ones.
    """

    f: Callable[..., PyTree]
    x: PyTree
    y: np.ndarray | jax.Array | None
    held_out: ProbeBatch | None
    is_trained_on: bool
    n_shared: int
    loss: Loss | None
    batch_size: int | None = None
    digest: str | None = None
    _verified: bool = dataclasses.field(init=False, default=False)

    @staticmethod
    def of(
        f: Callable[..., PyTree],
        probes: Probes,
        *,
        loss: LossLike | None,
        batch_size: int | None = None,
    ) -> "Subject":
        """Check the arguments of a monitor, and copy the examples to the host."""
        batch = probes.of_kernel
        has_both = probes.train is not None and probes.held_out is not None
        subject = Subject(
            f,
            x=jax.tree.map(_host_copy, batch.x),
            y=None if batch.y is None else _host_copy(batch.y),
            held_out=_host_copy_of(probes.of_labels) if has_both else None,
            is_trained_on=probes.train is not None,
            n_shared=shared_examples(probes),
            loss=as_loss(loss),
            batch_size=batch_size,
            digest=batch.digest,
        )
        if isinstance(f, Functional):
            subject.outputs(f.params)
            subject.verify(f.params)
        return subject

    @property
    def n_examples(self) -> int:
        """Examples of the probe, N."""
        return jax.tree.leaves(self.x)[0].shape[0]

    @property
    def group_size(self) -> int:
        """Examples that go through the model together: a divisor of N."""
        n = self.n_examples
        largest = max(1, min(_GROUP, n // _FEWEST_GROUPS))
        return max(size for size in range(1, largest + 1) if n % size == 0)

    @property
    def function(self) -> Callable[..., PyTree]:
        """The pure function f(params, x), the same object for all measurements."""
        return self.f.apply if isinstance(self.f, Functional) else self.f

    def evaluate(
        self, params: PyTree, x: PyTree, held: Mapping[str, PyTree]
    ) -> Float[Array, "n *o"]:
        """f(params, x), with these values for what `f` holds fixed; all else stays as it was."""
        if not held:
            return self.function(params, x)
        return self.following(params, x, held=held)

    def followed(self, held: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Of the values in training of what `f` holds fixed, those it is to be evaluated with.

        None of them where statistics are those of a batch.
        """
        f = self.f
        if not isinstance(f, Functional) or f.rebuild is None or f.mode.startswith("train"):
            return {}
        # Random keys and their counters decide nothing in evaluation. The counters of an Equinox
        # State do: normalisation corrects its averages by them.
        followed = {}
        for path, leaf in held.items():
            if jnp.issubdtype(leaf.dtype, jnp.inexact) or path.startswith("state/"):
                followed[path] = leaf
        return followed

    @functools.cached_property
    def following(self) -> Callable[..., PyTree]:
        """`f(params, x, held=...)`: what is held fixed is an argument, in one program."""
        f = self.f
        assert isinstance(f, Functional)
        rebuild = f.rebuild
        assert rebuild is not None  # `followed` gives nothing to follow otherwise

        def evaluate(params: PyTree, x: PyTree, *, held: Mapping[str, PyTree]) -> PyTree:
            return rebuild(f.params, held)(params, x)

        return evaluate

    def outputs(self, params: PyTree) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the outputs on the probe, once labels fit them; nothing is computed.

        The dtype is that of all numbers: float32 or wider, also where the model is in bfloat16.
        """
        outputs = require_outputs(self.function, params, self.x)
        if self.loss is not None:
            self.loss.require_fit(outputs.shape)
        if self.y is not None:
            require_labels_differ(read_targets(self.y, outputs.shape))
            if self.loss is not None:
                self.loss.read(self.y, outputs.shape)
        if self.held_out is not None:
            held_out_outputs = require_outputs(self.function, params, self.held_out.x)
            require_labels_differ(read_targets(self.held_out_labels, held_out_outputs.shape))
        return jax.ShapeDtypeStruct(outputs.shape, _jax.at_least_float32(outputs.dtype))

    def labels(self, shape: tuple[int, ...]) -> PyTree:
        """The labels as the loss reads them; None without a loss or labels."""
        if self.loss is None or self.y is None:
            return None
        return self.loss.read(self.y, shape)

    @property
    def held_out_labels(self) -> np.ndarray | jax.Array:
        """Labels of the held-out examples, which `read_probes` refuses without."""
        assert self.held_out is not None
        assert isinstance(self.held_out.y, np.ndarray | jax.Array)  # as `_host_copy` leaves them
        return self.held_out.y

    def verify(self, params: PyTree) -> None:
        """Check once, at the first parameters that are not traced, that examples do not interact.

        They do under batch norm in train mode. Cost: a forward pass of four examples together, and
        one of each alone.
        """
        if self._verified or is_traced(params, self.x):
            return
        # A chain may be built inside a trace, which would make traced values of known ones.
        with jax.ensure_compile_time_eval():
            check_few(self.function, params, self.x)
        # The one thing about a subject that changes: everything else is frozen.
        object.__setattr__(self, "_verified", True)


def _host_copy_of(probe: ProbeBatch) -> ProbeBatch:
    """A probe whose arrays nobody else holds."""
    x, y = jax.tree.map(_host_copy, (probe.x, probe.y))
    return dataclasses.replace(probe, x=x, y=y)


def _host_copy(leaf: ArrayLike) -> Any:
    """A copy of an array of examples or labels, that the loop can neither donate nor change.

    On the host it is committed to no device, and follows the parameters to theirs.
    """
    # Neither what is being traced nor random keys have values that NumPy could hold.
    is_random_key = jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.extended)
    if isinstance(leaf, Tracer) or is_random_key:
        return leaf
    return np.array(leaf)
