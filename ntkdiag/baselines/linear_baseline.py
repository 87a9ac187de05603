"""`linear_baseline`: network, linearizations and kernel regressions in one call.

1. Train the network and its linearization at initialisation side by side.
2. At the checkpoint linearize the network again, there, and train that beside them to the end.
3. Regress the labels on the kernel at initialisation, K_0, and after training, K_T.
4. Judge all five on the test examples.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.baselines.baseline_results import BaselineResult, LinearBaseline
from ntkdiag.baselines.gap_over_training import GapHistory, comparer, history_of
from ntkdiag.baselines.kernel_ridge import kernel_ridge
from ntkdiag.baselines.methods_sentences import methods
from ntkdiag.baselines.trainer import Position, log_spaced, train
from ntkdiag.baselines.training_data import Data, accuracy, batches, read_data
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.independence import check_few
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.linearization.taylor import linearize
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models import functionalize
from ntkdiag.progress import Work, under_way

# Of ten steps of progress training takes seven, the trained models and the regressions one each.
_STEPS_OF_TRAINING = 7


@errors.public
def linear_baseline(
    model: Any,
    data: PyTree,
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
    progress: bool | None = None,
    **options: Any,
) -> LinearBaseline:
    """Compare a network with what it would be if its kernel stood still.

    Trains the network, its linearization at initialisation, and its linearization at a later
    checkpoint, by the same Optax optimizer on the same batches; and regresses the labels on its
    kernel at initialisation and after training. Close to its linearization at init: lazy. Close to
    the regression on K_T only: it learned a kernel. Better than both: the kernel picture does not
    suffice.

    Cost: about 13/3 of training the network, two kernels of `kernel_examples` examples and their
    eigendecompositions.

    Source: Lee et al. 2019 (arXiv 1902.06720); Fort et al. 2020 (2010.15110); Ortiz-Jimenez et al.
    2021 (2106.06770).

    Args:
        model: As for `functionalize`, with one array of outputs.
        data: `(x, y, x_test, y_test)`; class numbers or targets shaped like the outputs.
        optimizer: An Optax transformation.
        variables: As for `functionalize`.
        loss: As for `gap_over_training`.
        steps: Number of steps.
        batch_size: Examples per step; None for all.
        checkpoint: Step at which the network is linearized again; None for a tenth of the steps.
        relative_ridge: Ridge of the regressions, in units of the mean diagonal entry of the kernel,
            which is its mean eigenvalue.
        kernel_examples: The regressions use at most so many training examples, the first ones.
        reduction: Reduction of their kernel over outputs: "mean" (stands for K kron I_C), or
            "full".
        seed: Of the order of examples.
        progress: Whether to show how far it has come, and the time left. None does on a terminal
            after two seconds; True wherever output goes.
        **options: Handed to `functionalize`.

    Returns:
        The comparison: print it for the table and the methods.

    Raises:
        InvalidInputError: When data, loss or a number are not as described, or as `functionalize`.
        ExamplesInteractError: When outputs of one example depend on the others, as with batch norm
            in train mode.
    """
    if checkpoint is None:
        checkpoint = max(1, steps // 10)
    _require_settings(checkpoint, steps, relative_ridge, kernel_examples, reduction)
    functional = functionalize(model, variables, **options)
    f, params = functional
    read = read_data(data, loss, f, params)
    read.regression_targets()  # refuses, before anything is trained, labels without any
    _require_optimizer(optimizer)
    check_few(f, params, read.x)

    with under_way("linear baseline", _STEPS_OF_TRAINING + 3, progress) as work:
        # Training: the network and its two linearizations, on the same batches. Trained models are
        # compared with the network, the network with nobody.
        order = batches(read.n, batch_size, steps, seed)
        runs = _Runs(f, params, optimizer, read, order, steps, checkpoint)
        with under_way("training", steps, fills=_STEPS_OF_TRAINING) as training:
            gap, gap_later = runs.follow(training)
        work.advance(_STEPS_OF_TRAINING)
        network = _trained("network", f, runs.network, read, None)
        contenders = [
            network,
            _trained("linearized at init", runs.f_lin, runs.linear, read, network),
            _trained(
                f"linearized at step {checkpoint}",
                runs.f_lin_later,
                runs.linear_later,
                read,
                network,
            ),
        ]

        work.advance()

        # Regression: what the kernels know, before and after.
        rows = min(kernel_examples, read.n)
        n_outputs = math.prod(read.shape[1:])
        for name, at in (("kernel ridge, K_0", params), ("kernel ridge, K_T", runs.network)):
            if _is_finite(at):
                train_outputs, outputs = kernel_ridge(f, at, read, rows, relative_ridge, reduction)
            else:  # the run diverged: that is a result, too
                train_outputs = np.full((rows, n_outputs), np.nan)
                outputs = np.full((read.m, n_outputs), np.nan)
            contenders.append(_regressed(name, train_outputs, outputs, read, network))
            work.advance()

    sentences = methods(
        functional, read, steps, batch_size, checkpoint, relative_ridge, rows, reduction, seed
    )
    return LinearBaseline(
        contenders=tuple(contenders),
        gap=gap,
        gap_later=gap_later,
        checkpoint=checkpoint,
        steps=steps,
        params=runs.network,
        methods=sentences,
    )


def _require_settings(
    checkpoint: int, steps: int, relative_ridge: float, kernel_examples: int, reduction: str
) -> None:
    """Refuse numbers out of their range."""
    is_checkpoint = 0 < checkpoint < steps
    is_reduction = reduction in ("mean", "full")
    if is_checkpoint and relative_ridge > 0 and kernel_examples >= 1 and is_reduction:
        return
    raise errors.InvalidInputError(
        expected="0 < `checkpoint` < `steps`, positive `relative_ridge` and `kernel_examples`, and "
        '`reduction` "mean" or "full"',
        got=f"checkpoint={checkpoint}, steps={steps}, relative_ridge={relative_ridge}, "
        f"kernel_examples={kernel_examples}, reduction={reduction!r}",
        do="The checkpoint is a number of steps; the ridge is in units of the mean diagonal entry "
        "of the kernel.",
    )


def _require_optimizer(optimizer: object) -> None:
    """Refuse what is no Optax transformation."""
    has_both = hasattr(optimizer, "init") and hasattr(optimizer, "update")
    if not has_both:
        raise errors.InvalidInputError(
            expected="an Optax transformation",
            got=repr(optimizer),
            do="Pass optax.sgd(0.1), for instance.",
        )


def _is_finite(params: PyTree) -> bool:
    """Whether no parameter is NaN or infinite."""
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params))


class _Runs:
    """The network and its two linearizations, trained side by side.

    Only the parameters of one step are held.
    """

    def __init__(
        self,
        f: Callable[..., PyTree],
        params: PyTree,
        optimizer: Any,
        data: Data,
        order: Int[np.ndarray, "steps size"],
        steps: int,
        checkpoint: int,
    ):
        self.f = f
        self.params = params
        self.optimizer = optimizer
        self.data = data
        self.order = order
        self.checkpoint = checkpoint
        # Both histories are spaced evenly in the logarithm of their own steps.
        from_start = log_spaced(steps)
        from_checkpoint = [checkpoint + mark for mark in log_spaced(steps - checkpoint)]
        self.marks = sorted({*from_start, *from_checkpoint})
        self.network = params
        self.linear = params
        self.linear_later = params
        self.f_lin = linearize(f, params)
        self.f_lin_later = self.f_lin

    def follow(self, work: Work) -> tuple[GapHistory, GapHistory]:
        """Train all three, and record both gaps; the steps of the work are those of training."""
        network = self._train(self.f, self.params)
        linear = self._train(self.f_lin, self.params)
        compare = comparer(self.f, self.params, self.data, second_order=True)
        # Up to the checkpoint, which is one of the marks, there are two runs.
        rows = []
        for mark in self.marks:
            self.network, state = next(network)
            self.linear, _ = next(linear)
            rows.append(compare(self.network, self.linear))
            work.reach(mark)
            if mark == self.checkpoint:
                break
        # From the checkpoint on there is a third run, with parameters and optimizer of the first.
        # Its first mark is the checkpoint itself, where nothing has been trained.
        compare_later = comparer(self.f, self.network, self.data, second_order=True)
        self.f_lin_later = linearize(self.f, self.network)
        later = self._train_later(state)
        self.linear_later, _ = next(later)
        rows_later = [compare_later(self.network, self.linear_later)]
        marks_left = self.marks[len(rows) :]
        for mark, at_mark, linear_at_mark, later_at_mark in zip(
            marks_left, network, linear, later, strict=True
        ):
            self.network = at_mark.params
            self.linear = linear_at_mark.params
            self.linear_later = later_at_mark.params
            rows.append(compare(self.network, self.linear))
            rows_later.append(compare_later(self.network, self.linear_later))
            work.reach(mark)
        return history_of(self.marks, rows), history_of(self._later_marks(), rows_later)

    def _train(self, f: Callable[..., PyTree], params: PyTree) -> Iterator[Position]:
        """Train a model from the start, stopping by at the marks."""
        return train(f, params, self.optimizer, self.data, self.order, self.marks)

    def _train_later(self, state: PyTree) -> Iterator[Position]:
        """Train the second linearization from the checkpoint on, on the batches that are left."""
        order = self.order
        if len(order) > 1:  # a single row stands for all steps
            order = order[self.checkpoint :]
        return train(
            self.f_lin_later,
            self.network,
            self.optimizer,
            self.data,
            order,
            self._later_marks(),
            state,
        )

    def _later_marks(self) -> list[int]:
        """The marks from the checkpoint on, counted from there."""
        return [mark - self.checkpoint for mark in self.marks if mark >= self.checkpoint]


def _trained(
    name: str, f: Callable[..., PyTree], params: PyTree, data: Data, network: BaselineResult | None
) -> BaselineResult:
    """A trained model, judged on the test examples and beside the network."""
    # Compiled, with the options that its float32 reductions need.
    full = in_full_precision(f)
    run = jax.jit(full, compiler_options=compiler_options(reduces=True) or None)
    outputs = run(params, data.x_test)
    train_loss = float(data.loss(run(params, data.x), data.y))
    test_loss = float(data.loss(outputs, data.y_test))
    return _contender(name, train_loss, test_loss, outputs, data, network, same_scale=True)


def _regressed(
    name: str,
    train_outputs: Float[np.ndarray, "r o"],
    outputs: Float[np.ndarray, "m o"],
    data: Data,
    network: BaselineResult,
) -> BaselineResult:
    """A regression, judged likewise; its outputs are targets, on another scale than logits."""
    # [n o] -> [n ...], as the loss takes outputs.
    train_values = jnp.asarray(train_outputs, jnp.float32).reshape(-1, *data.shape[1:])
    values = jnp.asarray(outputs, jnp.float32).reshape(-1, *data.shape[1:])
    # Squared error alone has a meaning for them: under another loss there are no losses to show.
    if not data.loss.is_quadratic:
        return _contender(name, None, None, values, data, network, same_scale=False)
    train_loss = float(data.loss(train_values, data.y[: len(train_values)]))
    test_loss = float(data.loss(values, data.y_test))
    return _contender(name, train_loss, test_loss, values, data, network, same_scale=True)


def _contender(
    name: str,
    train_loss: float | None,
    test_loss: float | None,
    outputs: Float[Array, "m *o"],
    data: Data,
    network: BaselineResult | None,
    same_scale: bool,
) -> BaselineResult:
    """One line of the table; the network itself is compared with nobody."""
    # Labels decide about accuracy, the number of outputs about agreement, the scale about distance.
    share_right = accuracy(outputs, data.classes_test)
    agreement = None
    distance = None
    if network is not None and outputs.ndim == 2 and outputs.shape[1] > 1:
        is_same = jnp.argmax(outputs, axis=1) == jnp.argmax(network.outputs, axis=1)
        agreement = float(jnp.mean(is_same))
    if network is not None and same_scale:
        distance = float(jnp.sqrt(jnp.mean((outputs - network.outputs) ** 2)))
    return BaselineResult(
        name=name,
        train_loss=train_loss,
        test_loss=test_loss,
        accuracy=None if share_right is None else float(share_right),
        agreement=agreement,
        distance=distance,
        outputs=outputs,
    )
