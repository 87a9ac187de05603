"""What a monitor measures: the model, a batch of examples with labels, the loss, the optimizer."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.arrays import require_positive
from ntkdiag.call_f import running
from ntkdiag.jaxtools import arguments, jaxprs
from ntkdiag.jaxtools.independence import check_few
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.jaxtools.tracing import is_traced
from ntkdiag.losses import Loss
from ntkdiag.losses.alignable import alignable_targets, why_not_alignable
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.losses.targets import Weighted, read_targets, require_labels_differ
from ntkdiag.models.functional import Functional
from ntkdiag.models.in_training import Following, has_batch_statistics, in_training
from ntkdiag.monitor.point import Matched, Point, as_optimizer, match
from ntkdiag.probe_batch import (
    Pair,
    ProbeBatch,
    read_n_train,
    read_probes,
    require_label_of_each,
)

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Everything that a measurement needs except a point."""

    f: Callable[..., PyTree] | None  # a Functional, or `f(params, x)`; None measures without data
    x: PyTree  # examples the kernel is of; every leaf has leading axis N
    y: PyTree  # labels, as the loss takes them; None leaves the alignment out
    loss: Loss | None = None  # the loss that is trained; None leaves all stability numbers out
    optimizer: "optax.GradientTransformationExtraArgs | None" = None  # None leaves out the margin
    held_out: ProbeBatch | None = None  # examples the alignment is of, where they are others
    is_trained_on: bool = True  # whether x is of the training set; if not, there is no margin
    top_k: int = 5  # number of eigenvalues, where the kernel has as many
    n_train: int | None = None  # examples of the whole training set; None where it is not known
    batch_size: int | None = None  # examples of a training step; None where it is not known
    digest: str | None = None  # SHA-256 of the examples; None for what is being traced
    _verified: list[bool] = dataclasses.field(default_factory=list)

    @staticmethod
    def of(
        f: Callable[..., PyTree],
        *,
        train: Pair | None,
        held_out: Pair | None,
        loss: LossLike | None,
        optimizer: object,
        top_k: int | np.integer,
        n_train: int | np.integer | None,
        batch_size: int | None,
    ) -> "Probe":
        """Check the arguments of `watch` and `Monitor`, and copy the examples to the host."""
        arguments.check_function(f)
        trained_loss = as_loss(loss)
        probes = read_probes(train, held_out)
        # A flag is an integer to Python; nobody means one here.
        if not isinstance(top_k, int | np.integer) or isinstance(top_k, bool) or top_k < 1:
            raise errors.InvalidInputError(
                expected="an integer top_k of at least 1",
                got=f"top_k={top_k!r}",
                do="Correct this argument.",
            )
        if batch_size is not None:
            require_positive(batch_size, "batch_size")
        batch = probes.of_kernel
        if isinstance(trained_loss, CustomLoss):  # other losses look at shapes
            require_label_of_each(batch)
            require_label_of_each(probes.of_labels)
        of_alignment = None
        if probes.train is not None and probes.held_out is not None:
            x, y = jax.tree.map(_host_copy, (probes.held_out.x, probes.held_out.y))
            of_alignment = dataclasses.replace(probes.held_out, x=x, y=y)
        probe = Probe(
            f,
            x=jax.tree.map(_host_copy, batch.x),
            y=jax.tree.map(_host_copy, batch.y),
            loss=trained_loss,
            optimizer=None if optimizer is None else as_optimizer(optimizer),
            held_out=of_alignment,
            is_trained_on=probes.train is not None,
            top_k=int(top_k),
            n_train=read_n_train(n_train, probes),
            batch_size=batch_size,
            digest=batch.digest,
        )
        if isinstance(f, Functional):
            probe.fit(f.params)
        return probe

    @property
    def has_loss(self) -> bool:
        """Whether there is a loss with what it takes: a function of the user may have no labels."""
        return self.loss is not None and (self.y is not None or isinstance(self.loss, CustomLoss))

    @property
    def model(self) -> Callable[..., PyTree]:
        """`f`, of a probe that has one."""
        assert self.f is not None
        return self.f

    @property
    def n_examples(self) -> int:
        """Examples of the probe, N."""
        return jax.tree.leaves(self.x)[0].shape[0]

    @functools.cached_property
    def trained(self) -> Callable[..., PyTree]:
        """The model as it is trained: with the statistics of the batch where it normalizes."""
        if not isinstance(self.f, Functional):
            return self.model
        # An optimizer may be made inside a trace, which would make traced values of known ones.
        with jax.ensure_compile_time_eval():
            return in_training(self.f)

    @property
    def is_joint(self) -> bool:
        """Whether examples interact in training."""
        return isinstance(self.trained, Functional) and self.trained.joint

    @functools.cached_property
    def _following(self) -> Following | None:
        return Following(self.f) if isinstance(self.f, Functional) else None

    def match(self, point: Point) -> Matched:
        """The parameters of a point as f takes them, and what moves beside them."""
        return match(self.model, point.params, point.model_state)

    def function(
        self, held: Mapping[str, PyTree]
    ) -> Callable[[PyTree, PyTree], Float[Array, "n *o"]]:
        """The function that is trained, with the values in training of what the model holds."""
        following = self._following
        if following is None or self.is_joint or following.functional.mode.startswith("train"):
            return self.trained.apply if isinstance(self.trained, Functional) else self.trained
        followed = following.followed(held)
        if not followed:
            return following.functional.apply
        return functools.partial(following.function, held=following.as_arguments(followed))

    def fit(self, params: PyTree) -> jax.ShapeDtypeStruct:
        """The outputs on the probe, in float32 at least, once labels and settings fit them."""
        outputs = _require_outputs(self.model, params, self.x)
        shape = tuple(outputs.shape)
        dtype = at_least_float32(outputs.dtype)
        loss, y = self.loss, self.y
        if loss is not None:
            loss.require_fit(shape)
        if isinstance(loss, CustomLoss):
            loss.require_runs(shape, dtype, y)
        if loss is not None and y is not None:
            loss.read(y, shape)
        held_out = self.held_out
        if held_out is not None:
            shape = tuple(_require_outputs(self.model, params, held_out.x).shape)
            y = held_out.y
        targets = alignable_targets(y, shape, loss)
        if targets is not None:
            require_labels_differ(targets)
        return jax.ShapeDtypeStruct(outputs.shape, dtype)

    def targets(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Labels as targets beside outputs of a shape, and which of these count; None without."""
        y, weights = self.y, None
        if y is None or is_traced(y):
            return None
        with jax.ensure_compile_time_eval():
            if self.loss is not None:
                y = self.loss.read(y, shape)
            if isinstance(y, Weighted):
                y, weights = y.y, y.weights
            loss = self.loss if isinstance(self.loss, CustomLoss) else None
            if why_not_alignable(y, shape, loss):
                return None
            counts = np.ones(shape, bool)
            if weights is not None:  # of examples, of positions, or of all outputs
                counts = np.asarray(weights) > 0
                missing = [1] * (len(shape) - counts.ndim)
                counts = np.broadcast_to(counts.reshape(*counts.shape, *missing), shape)
            return np.asarray(read_targets(y, shape)), counts

    def of_alignment(self) -> "Probe":
        """The probe that the alignment is of: the held-out examples where there are some."""
        if self.held_out is None:
            return self
        x, y = self.held_out.x, self.held_out.y
        return dataclasses.replace(self, x=x, y=y, held_out=None, is_trained_on=False)

    def verify(self, params: PyTree) -> None:
        """Check once, at the first parameters that have values, that examples do not interact."""
        if self._verified or self.is_joint or is_traced(params, self.x):
            return
        if not isinstance(jnp.zeros(()), Tracer):
            check_few(self.function({}), params, self.x)
        else:
            # A chain may be built inside a trace, which would make traced values of known ones.
            try:
                with jax.ensure_compile_time_eval():
                    check_few(self.function({}), params, self.x)
            except errors.NtkdiagError:
                raise
            except Exception:  # of a model that does not run so, as behind `equinox.error_if`
                return
        self._verified.append(True)

    def normalizes(self, params: PyTree) -> bool:
        """Whether `f` normalizes in float32, which XLA may compute wrongly in a user's `jit`."""
        leaves = jax.tree.leaves(params)
        if all(getattr(leaf, "dtype", None) == jnp.float64 for leaf in leaves):
            return False
        if isinstance(self.f, Functional):
            # In training, statistics of the batch take the place of those it holds.
            if has_batch_statistics(self.f):
                return True
            params = self.f.params
        function = self.f.apply if isinstance(self.f, Functional) else self.model
        return jaxprs.normalizes(jax.make_jaxpr(function)(params, self.x))


def _require_outputs(f: Callable[..., PyTree], params: PyTree, x: PyTree) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the outputs on some examples, without computing them."""
    function = f.apply if isinstance(f, Functional) else f
    with running():
        outputs = jax.eval_shape(function, params, x)
    leaves = jax.tree.leaves(outputs)
    n_examples = jax.tree.leaves(x)[0].shape[0]
    if len(leaves) != 1 or leaves[0].shape[:1] != (n_examples,):
        raise errors.InvalidInputError(
            expected=f"f(params, x) to return one array with the {n_examples} examples of x on its "
            "leading axis",
            got=", ".join(f"shape {leaf.shape}" for leaf in leaves) or "nothing",
            do="Wrap f so that it returns the outputs to diagnose.",
        )
    return leaves[0]


def _host_copy(leaf: Any) -> Any:
    """A copy of an array of examples or labels, that the loop can neither donate nor change."""
    # Neither what is being traced nor random keys have values that NumPy could hold.
    is_random_key = jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.extended)
    if isinstance(leaf, Tracer) or is_random_key:
        return leaf
    return np.array(leaf)
