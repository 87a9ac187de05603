"""The methods paragraph: everything a reader needs to repeat the numbers, in sentences."""

from ntkdiag.report.reported import Comparison, Measured

# What holds for every comparison.
_OF_KERNELS = (
    "Eigenvalues were computed in float64 from the symmetrised kernel; those below the noise floor "
    "are unresolved and not shown: ε √n λ₁, with ε the unit roundoff of the kernel's dtype and n "
    "its size, at least 64, or that of the model times λ₁, if larger. Centring removes the mean "
    "over examples, output by output. The linear prediction of B is f(θ_A) + J(θ_A)(θ_B − θ_A)."
)


def methods(comparison: Comparison) -> list[str]:
    """Write the methods of a comparison."""
    side_a = _side("A", comparison.a)
    side_b = _side("B", comparison.b)
    return [
        _kernel(comparison),
        f"Sides: {side_a}; {side_b}.",
        _OF_KERNELS,
        _labels_and_loss(comparison),
        f"Versions: {comparison.facts['versions']}.",
    ]


def _kernel(comparison: Comparison) -> str:
    """What the kernels are kernels of."""
    facts = comparison.facts
    n_outputs = facts["n_outputs"]
    outputs = "output" if n_outputs == 1 else "outputs"
    models = [_model(comparison, of) for of in ("", "_b") if f"model{of}" in facts]
    return (
        f"Empirical neural tangent kernels Θ = J Jᵀ of {' and of '.join(models)}, on "
        f"N = {facts['n_examples']} examples {facts['kernel_probe']} with C = {n_outputs} "
        f"{outputs} each; {facts['kernel']}, computed in {facts['kernel_dtype']} on "
        f"{facts['backend']}. SHA-256 of "
        f"the examples: {facts['train_sha256'] or facts['held_out_sha256']}."
    )


def _model(comparison: Comparison, of: str) -> str:
    """The model of both sides, or that of B, `of` "_b", where it is another one."""
    facts = comparison.facts
    name = str(facts[f"model{of}"]).removesuffix(" model")
    return (
        f"a {name} model with {facts[f'parameters{of}']:,} parameters "
        f"({facts[f'parameter_dtype{of}']}), in {facts[f'mode{of}']} mode"
    )


def _side(name: str, side: Measured) -> str:
    """Where the parameters of one side come from."""
    source = f"{name} is {side.label}"
    if side.path:
        source += f" of {side.path}"
    return (
        f"{source}, SHA-256 of its parameters {side.params_sha256[:16]}, fixed arrays: "
        f"{side.fixed_state}"
    )


def _labels_and_loss(comparison: Comparison) -> str:
    """What alignment, loss and stability are against."""
    facts = comparison.facts
    sentences = []
    if comparison.a.alignment is not None:
        if comparison.a.held_out is not None:
            sentences.append(
                f"Held-out examples: N = {facts['held_out_examples']}, {facts['label_kernel']}, "
                f"SHA-256 {facts['held_out_sha256']}."
            )
        sentences.append(
            f"Alignment and label power are of the {facts['reduction']} kernel of examples "
            f"{facts['label_probe']} and their labels, class numbers as one-hot rows; chance is "
            "the mean over all permutations of the labels among the examples. Leave-one-out is "
            "kernel regression with the mean over outputs and a ridge of "
            f"{facts['leave_one_out_ridge']:g} of its mean diagonal entry."
        )
    sentences.append(f"Loss: {facts['loss']}.")
    # There is a margin of full kernels only, and where a loss and an update rule are known.
    if facts["optimizer"] is not None:
        sentences.append(
            f"Stability: the largest eigenvalue of E^½ Jᵀ Σ J E^½ and half the weight decay, Σ the "
            "Hessian of the loss in the outputs and E half the update that answers a gradient of 1 "
            f"which changes its sign at every step, of the optimizer ({facts['optimizer']}) in the "
            "state that was saved; clipping and second moments are those of the next step with the "
            "gradient of the probe."
        )
    elif comparison.a.margin is not None:
        sentences.append(
            f"Stability: full-batch gradient descent with {facts['descent']} on the linearized "
            "model, from the largest eigenvalue of Σ^½ Θ Σ^½ with Σ the Hessian of the loss in the "
            "outputs; it does not hold for Adam."
        )
    return " ".join(sentences)
