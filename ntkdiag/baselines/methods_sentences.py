"""The methods sentences of a linear baseline."""

import jax

from ntkdiag.baselines.training_data import Data
from ntkdiag.models.functional import Functional


def methods(
    functional: Functional,
    data: Data,
    steps: int,
    batch_size: int | None,
    checkpoint: int,
    relative_ridge: float,
    rows: int,
    reduction: str,
    seed: int,
) -> str:
    """Write what was done, so that a reader can repeat it.

    Cost: none.

    Args:
        functional: The model.
        data: The data.
        steps: Number of steps.
        batch_size: Examples per step.
        checkpoint: Where the network was linearized again.
        relative_ridge: Ridge, relative to the mean diagonal entry, of the regressions.
        rows: Training examples of the regressions.
        reduction: Reduction of their kernel.
        seed: Of the order of examples.

    Returns:
        Sentences.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    full = batch_size is None or batch_size >= data.n
    order = "full batches" if full else f"batches of {batch_size} in the same order (seed {seed})"
    kernel = (
        "the full kernel over examples and outputs"
        if reduction == "full"
        else "the kernel averaged over outputs, the same for each output"
    )
    targets = "one-hot labels" if data.classes_test is not None else "targets"
    return (
        f"The {functional.library} model {functional.name} with {size:,} parameters ({functional.mode} mode) was trained "
        f"on N = {data.n} examples for {steps} steps of {order} on the loss {data.loss.describe(data.shape)}, "
        "beside its first-order Taylor model f(θ₀) + J(θ₀)(θ − θ₀) at initialisation and, from its parameters and "
        f"optimizer state at step {checkpoint}, beside that at step {checkpoint}: same optimizer, same examples. "
        f"Kernel ridge regression used the empirical neural tangent kernel Θ = J Jᵀ of the network at initialisation "
        f"(K_0) and after training (K_T) on {rows} training examples, {kernel}, with {targets} centred on the training "
        f"set and the ridge {relative_ridge:g} of the mean diagonal entry. All were judged on M = {data.m} test examples; "
        "agreement and distance compare their outputs there with those of the trained network."
    )
