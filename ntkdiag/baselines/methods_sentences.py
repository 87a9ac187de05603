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
    """What was done, in sentences from which a reader can repeat it."""
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    # What differs from call to call in words; the order has none where every batch is full.
    order = f"batches of {batch_size} in the same order (seed {seed})"
    if batch_size is None or batch_size >= data.n:
        order = "full batches"
    kernel = "the kernel averaged over outputs, the same for each output"
    if reduction == "full":
        kernel = "the full kernel over examples and outputs"
    targets = "targets" if data.classes_test is None else "one-hot labels"
    loss = data.loss.describe(data.shape)
    return (
        f"The {functional.library} model {functional.name} with {n_parameters:,} parameters "
        f"({functional.mode} mode) was trained on N = {data.n} examples for {steps} steps of "
        f"{order} on the loss {loss}, beside its first-order Taylor model f(θ₀) + J(θ₀)(θ − θ₀) at "
        f"initialisation and, from its parameters and optimizer state at step {checkpoint}, beside "
        f"that at step {checkpoint}: same optimizer, same examples. Kernel ridge regression used "
        "the empirical neural tangent kernel Θ = J Jᵀ of the network at initialisation (K_0) and "
        f"after training (K_T) on {rows} training examples, {kernel}, with {targets} centred on "
        f"the training set and the ridge {relative_ridge:g} of the mean diagonal entry. All were "
        f"judged on M = {data.m} test examples; agreement and distance compare their outputs there "
        "with those of the trained network."
    )
