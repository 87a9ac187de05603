"""The methods paragraph: everything a reader needs to repeat the numbers, in sentences."""

from typing import Any


def methods(comparison: Any) -> list[str]:
    """Write the methods of a comparison.

    Args:
        comparison: A `Comparison`.

    Returns:
        Paragraphs.
    """
    facts, a, b = comparison.facts, comparison.a, comparison.b
    n, c = facts["n_examples"], facts["n_outputs"]
    kernel = (
        f"Empirical neural tangent kernels Θ = J Jᵀ of a {facts['model']} model with {facts['parameters']:,} "
        f"parameters ({facts['parameter_dtype']}), in {facts['mode']} mode, on N = {n} probe examples with C = {c} "
        f"output{'s' if c != 1 else ''} each; {facts['kernel']}, computed in {facts['kernel_dtype']} on "
        f"{facts['backend']}. SHA-256 of the probe: {facts['probe_sha256']}."
    )
    sides = "; ".join(
        f"{name} is {side.label}{f' of {side.path}' if side.path else ''}, SHA-256 of its parameters "
        f"{side.params_sha256[:16]}, fixed arrays: {side.fixed_state}"
        for name, side in (("A", a), ("B", b))
    )
    numbers = (
        "Eigenvalues were computed in float64 from the symmetrised kernel; those below the noise "
        "floor are unresolved and not shown: ε √n λ₁, with ε the unit roundoff of the kernel's dtype and n its size, "
        "at least 64, or that of the model times λ₁, if larger. Centring removes the mean over "
        "examples, output by output. The linear prediction of B is f(θ_A) + J(θ_A)(θ_B − θ_A)."
    )
    return [
        kernel,
        f"Sides: {sides}.",
        numbers,
        *_labels(comparison),
        f"Versions: {facts['versions']}.",
    ]


def _labels(comparison: Any) -> list[str]:
    facts = comparison.facts
    said = []
    if comparison.a.alignment is not None:
        what = "one-hot labels" if comparison.classes is not None else "the targets"
        said.append(f"Alignment and label power are against {what}.")
    said.append(f"Loss: {facts['loss']}.")
    if comparison.a.margin is not None:
        said.append(
            f"Stability: full-batch SGD with {facts['descent']} on the linearized model, from the "
            "largest eigenvalue of Σ^½ Θ Σ^½ with Σ the "
            "Hessian of the loss in the outputs; it does not hold for Adam."
        )
    return [" ".join(said)]
