"""`linear_baseline`: network, linearizations and kernel regressions in one call."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag._jax import compiler_options
from ntkdiag.baselines.contenders import Contender, LinearBaseline
from ntkdiag.baselines.gap_over_training import GapHistory, comparer, history_of
from ntkdiag.baselines.kernel_ridge import kernel_ridge
from ntkdiag.baselines.methods_sentences import methods
from ntkdiag.baselines.trainer import log_spaced, train
from ntkdiag.baselines.training_data import (
    Data,
    accuracy,
    batches,
    read_data,
)
from ntkdiag.engine.independence import check_few
from ntkdiag.linearization.taylor import linearize
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models import functionalize


@errors.public
def linear_baseline(
    model: Any,
    data: Any,
    optimizer: Any,
    *,
    variables: Any = None,
    loss: LossLike,
    steps: int = 500,
    batch_size: int | None = None,
    checkpoint: int | None = None,
    relative_ridge: float = 1e-3,
    kernel_examples: int = 1024,
    reduction: str = "mean",
    seed: int = 0,
    **options: Any,
) -> LinearBaseline:
    """Compare a network with what it would be if its kernel stood still.

    Trains the network, its linearization at initialisation, and its linearization at a later checkpoint, by the same
    Optax optimizer on the same batches; and regresses the labels on its kernel at initialisation and after training.
    Close to its linearization at init: lazy. Close to the regression on K_T only: it learned a kernel. Better than
    both: the kernel picture does not suffice.
    Cost: about 13/3 of training the network, two kernels of `kernel_examples` examples and their
    eigendecompositions.
    Source: Lee et al. 2019 (arXiv 1902.06720); Fort et al. 2020 (2010.15110); Ortiz-Jimenez et al. 2021 (2106.06770).

    Args:
        model: As for `functionalize`, with one array of outputs.
        data: `(x, y, x_test, y_test)`; class numbers or targets shaped like the outputs.
        optimizer: An Optax transformation.
        variables: As for `functionalize`.
        loss: As for `gap_over_training`.
        steps: Number of steps.
        batch_size: Examples per step; None for all.
        checkpoint: Step at which the network is linearized again; None for a tenth of the steps.
        relative_ridge: Ridge of the regressions, in units of the mean diagonal entry of the kernel, which
            is its mean eigenvalue.
        kernel_examples: The regressions use at most so many training examples, the first ones.
        reduction: Reduction of their kernel over outputs: "mean" (stands for K kron I_C), or "full".
        seed: Of the order of examples.
        **options: Handed to `functionalize`.

    Returns:
        The comparison: print it for the table and the methods.

    Raises:
        InvalidInputError: When data, loss or a number are not as described, or as `functionalize`.
        ExamplesInteractError: When outputs of one example depend on the others, as with batch norm in train mode.
    """
    checkpoint = max(1, steps // 10) if checkpoint is None else checkpoint
    if (
        not 0 < checkpoint < steps
        or not relative_ridge > 0
        or reduction not in ("mean", "full")
        or kernel_examples < 1
    ):
        raise errors.InvalidInputError(
            expected="0 < `checkpoint` < `steps`, positive `relative_ridge` and `kernel_examples`, and "
            '`reduction` "mean" or "full"',
            got=f"checkpoint={checkpoint}, steps={steps}, relative_ridge={relative_ridge}, kernel_examples={kernel_examples}, "
            f"reduction={reduction!r}",
            do="The checkpoint is a number of steps; the ridge is in units of the mean diagonal entry of "
            "the kernel.",
        )
    functional = functionalize(model, variables, **options)
    f, params = functional
    read = read_data(data, loss, f, params)
    read.regression_targets()  # refuses, before anything is trained, labels without any
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "update")):
        raise errors.InvalidInputError(
            expected="an Optax transformation",
            got=repr(optimizer),
            do="Pass optax.sgd(0.1), for instance.",
        )
    check_few(f, params, read.x)
    order = batches(read.n, batch_size, steps, seed)
    runs = _Runs(f, params, optimizer, read, order, steps, checkpoint)
    gap, gap_later = runs.follow()
    rows = min(kernel_examples, read.n)
    network = _trained("network", f, runs.own, read, None)
    contenders = [
        network,
        _trained("linearized at init", runs.lin, runs.linear, read, network),
        _trained(
            f"linearized at step {checkpoint}", runs.lin_later, runs.linear_later, read, network
        ),
    ]
    width = math.prod(read.shape[1:])
    for name, at in (("kernel ridge, K_0", params), ("kernel ridge, K_T", runs.own)):
        if all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(at)):
            regressed = kernel_ridge(f, at, read, rows, relative_ridge, reduction)
        else:  # the run diverged: that is a result, too
            regressed = np.full((rows, width), np.nan), np.full((read.m, width), np.nan)
        contenders.append(_regressed(name, *regressed, read, network))
    said = methods(
        functional, read, steps, batch_size, checkpoint, relative_ridge, rows, reduction, seed
    )
    return LinearBaseline(tuple(contenders), gap, gap_later, checkpoint, steps, runs.own, said)


class _Runs:
    """The network and its two linearizations, trained side by side: only the parameters of one step are held."""

    def __init__(
        self,
        f: Any,
        params: Any,
        optimizer: Any,
        data: Data,
        order: Any,
        steps: int,
        checkpoint: int,
    ):
        self.f, self.params, self.optimizer, self.data, self.order = (
            f,
            params,
            optimizer,
            data,
            order,
        )
        self.checkpoint = checkpoint
        self.marks = sorted(
            {
                *log_spaced(steps),
                checkpoint,
                *(checkpoint + m for m in log_spaced(steps - checkpoint)),
            }
        )
        self.lin = linearize(f, params)
        self.own = self.linear = self.linear_later = params

    def follow(self) -> tuple[GapHistory, GapHistory]:
        """Train all three, and record both gaps."""
        f, data, marks = self.f, self.data, self.marks
        own = train(f, self.params, self.optimizer, data, self.order, marks)
        linear = train(self.lin, self.params, self.optimizer, data, self.order, marks)
        compare, rows, rows_later = comparer(f, self.params, data, True), [], []
        later: Any = None
        for mark in marks:
            (self.own, state), (self.linear, _) = next(own), next(linear)
            rows.append(compare(self.own, self.linear))
            if mark == self.checkpoint:
                later = self._start_later(state)
            if later is not None:
                self.linear_later, _ = next(later)
                rows_later.append(self.compare_later(self.own, self.linear_later))
        since = [mark - self.checkpoint for mark in marks if mark >= self.checkpoint]
        return history_of(marks, rows), history_of(since, rows_later)

    def _start_later(self, state: Any) -> Any:
        self.lin_later = linearize(self.f, self.own)
        self.compare_later = comparer(self.f, self.own, self.data, True)
        order = self.order if len(self.order) == 1 else self.order[self.checkpoint :]
        since = [mark - self.checkpoint for mark in self.marks if mark >= self.checkpoint]
        return train(self.lin_later, self.own, self.optimizer, self.data, order, since, state)


def _trained(name: str, f: Any, params: Any, data: Data, network: Contender | None) -> Contender:
    run = jax.jit(f, compiler_options=compiler_options(reduces=True) or None)
    seen, outputs = run(params, data.x), run(params, data.x_test)
    losses = float(data.loss(seen, data.y)), float(data.loss(outputs, data.y_test))
    return _contender(name, losses, outputs, data, network, same_scale=True)


def _regressed(name: str, seen: Any, outputs: Any, data: Data, network: Contender) -> Contender:
    same = data.loss.is_quadratic
    seen, outputs = (
        jnp.asarray(value, jnp.float32).reshape(-1, *data.shape[1:]) for value in (seen, outputs)
    )
    losses: tuple[float | None, float | None] = (None, None)
    if same:
        losses = float(data.loss(seen, data.y[: len(seen)])), float(data.loss(outputs, data.y_test))
    return _contender(name, losses, outputs, data, network, same_scale=same)


def _contender(
    name: str,
    losses: tuple[float | None, float | None],
    outputs: jax.Array,
    data: Data,
    network: Contender | None,
    same_scale: bool,
) -> Contender:
    right = accuracy(outputs, data.classes_test)
    agreement = distance = None
    if network is not None and outputs.ndim == 2 and outputs.shape[1] > 1:
        agreement = float(
            jnp.mean(jnp.argmax(outputs, axis=1) == jnp.argmax(network.outputs, axis=1))
        )
    if network is not None and same_scale:
        distance = float(jnp.sqrt(jnp.mean((outputs - network.outputs) ** 2)))
    return Contender(
        name, *losses, None if right is None else float(right), agreement, distance, outputs
    )
