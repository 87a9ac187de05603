"""The table of all numbers: names, symbols, units and meanings.

A number has the same name in a row of a run, in a table of `compare` or `track`, in a dataset, in a
figure and in the documentation, whose page "What the numbers mean" is made from this table. The
ends of a 95 % interval end in "_lower" and "_upper". In a tracker each has "ntkdiag/" before it.
"""

import dataclasses

OF_KERNEL = "Of one kernel"
OF_TASK = "With labels and a loss"
OF_STATE = "Whether the model still learns"
OF_STEP = "Of a step of training"
OF_LAYERS = "Of each layer"
OF_OPTIMIZER = "Whether the optimizer is recognized"
OF_CHANGE = "From one kernel to another"
OF_PREDICTION = "What a linearized network explains"

# Of K = J J^T, whose rows are outputs.
KERNEL_UNIT = "outputs² / parameters²"


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One number."""

    section: str  # what it is of: the heading it stands under
    words: str  # in words
    meaning: str  # what it tells, with its convention
    symbol: str = ""  # as in the papers; may be empty
    unit: str = ""  # empty for a pure number


QUANTITIES = {
    # Each kernel by itself. Its eigenvalues are of squared outputs per squared parameter.
    "trace": Quantity(
        OF_KERNEL,
        "trace",
        "Sum of the eigenvalues: the overall speed of learning.",
        "tr Θ",
        KERNEL_UNIT,
    ),
    "norm": Quantity(OF_KERNEL, "norm", "Frobenius norm of the kernel.", "‖Θ‖", KERNEL_UNIT),
    "eigenvalues": Quantity(
        OF_KERNEL,
        "eigenvalues",
        "Descending; those below the noise floor are NaN.",
        "λ",
        KERNEL_UNIT,
    ),
    "largest_eigenvalue": Quantity(
        OF_KERNEL,
        "largest eigenvalue",
        "Speed of the fastest mode; for squared error it sets the critical learning rate.",
        "λ₁",
        KERNEL_UNIT,
    ),
    "participation_ratio": Quantity(
        OF_KERNEL,
        "participation ratio",
        "(Σλ)² / Σλ²: effective number of modes, weighted to the large ones.",
        "PR",
    ),
    "entropy_rank": Quantity(
        OF_KERNEL,
        "entropy rank",
        "exp(−Σ p log p), p = λ/Σλ, resolved eigenvalues only: falls when the kernel compresses.",
        "exp H",
    ),
    "rank": Quantity(
        OF_KERNEL,
        "resolved eigenvalues",
        "Eigenvalues above the noise floor; what lies below is rounding, not a number.",
    ),
    "noise_floor": Quantity(
        OF_KERNEL,
        "noise floor",
        "Unit roundoff of the kernel's dtype × √size × λ₁, or that of the model × λ₁ if larger.",
        "ε √n λ₁",
        KERNEL_UNIT,
    ),
    # Each kernel beside labels, loss and update rule.
    "loss": Quantity(
        OF_TASK, "loss", "The loss that is named, over all examples of the probe.", "L", "loss"
    ),
    "held_out_loss": Quantity(
        OF_TASK, "loss, held out", "The same of examples not trained on.", "L", "loss"
    ),
    "accuracy": Quantity(
        OF_TASK,
        "accuracy",
        "Share of labels that the outputs decide for: by the largest along the last axis or, under "
        "a sigmoid, by the sign.",
    ),
    "held_out_accuracy": Quantity(
        OF_TASK, "accuracy, held out", "The same of examples not trained on."
    ),
    "alignment": Quantity(
        OF_TASK,
        "alignment",
        "Centred alignment of the reduced kernel with the labels; "
        "with another reduction it is another number.",
        "cKTA",
    ),
    "alignment_above": Quantity(
        OF_TASK,
        "alignment above chance",
        "(cKTA − chance) / (1 − chance): rises from 0 when the fast directions become the label "
        "directions.",
    ),
    "held_out_alignment": Quantity(
        OF_TASK, "alignment, held out", "Of examples not trained on, and their averaged kernel."
    ),
    "held_out_alignment_above": Quantity(
        OF_TASK, "alignment above chance, held out", "(cKTA − chance) / (1 − chance), held out."
    ),
    "train_alignment": Quantity(
        OF_TASK,
        "alignment of examples trained on",
        "For comparison with that of held-out examples, with the same reduction of the kernel.",
        "cKTA",
    ),
    "train_alignment_above": Quantity(
        OF_TASK,
        "alignment above chance, trained on",
        "Of their reduced kernel: after training a kernel knows their labels.",
    ),
    "alignment_gap": Quantity(
        OF_TASK,
        "gap, trained on − held out",
        "Above chance: how much better the kernel fits the very examples it was trained on.",
    ),
    "label_power": Quantity(
        OF_TASK,
        "label power",
        "Share of the labels that lies in the k fastest modes, 10 in tables; kernel and labels "
        "centred.",
        "C(k)",
    ),
    "leave_one_out": Quantity(
        OF_TASK,
        "leave-one-out error",
        "Squared error of kernel regression on an example left out, over the variance of the "
        "labels: 1 is no better than their mean.",
    ),
    "label_doubts": Quantity(
        OF_TASK,
        "doubts about labels",
        "By how much kernel regression on all other examples prefers another class, per example.",
    ),
    "self_influence": Quantity(
        OF_TASK,
        "self-influence",
        "Squared gradient of the loss of each example: large where it is hard, or mislabelled.",
        "‖∇lᵢ‖²",
    ),
    "noise_scale": Quantity(
        OF_TASK,
        "gradient noise scale",
        "tr Cov(g) / ‖ḡ‖²: the batch at which the noise of a gradient is as large as the gradient.",
        "B",
        "examples",
    ),
    "critical_learning_rate": Quantity(
        OF_TASK,
        "critical learning rate",
        "Above this rate, full-batch gradient descent with the update rule diverges on the "
        "quadratic model of the loss at this point.",
        "η_c",
        "learning rate",
    ),
    "learning_rate": Quantity(
        OF_TASK,
        "learning rate",
        "Of the next step, as the state of the optimizer states it.",
        "η",
        "learning rate",
    ),
    "margin": Quantity(
        OF_TASK,
        "stability margin",
        "The learning rate over the critical one. Below 0.9 stable, 0.9 to 1.3 the edge of "
        "stability; up to 2 in the first steps; above 1.5 for longer, training may diverge.",
        "η/η_c",
    ),
    # Whether examples are still told apart.
    "dead": Quantity(
        OF_STATE, "dead", "1 where no parameter tells two examples apart: the kernel is constant."
    ),
    "equal_outputs": Quantity(
        OF_STATE, "equal outputs", "1 where the outputs are equal over examples."
    ),
    "output_spread": Quantity(
        OF_STATE,
        "spread of the outputs",
        "Root mean square of the outputs about their mean over examples.",
        unit="outputs",
    ),
    "constant_loss": Quantity(
        OF_STATE,
        "loss of constant outputs",
        "Of the best outputs that are equal over examples and positions.",
        unit="loss",
    ),
    # What a monitor measures of one step.
    "step_error": Quantity(
        OF_STEP,
        "step error",
        "‖Δf − J Δθ‖ / ‖Δf‖, e₁ of the next update alone: below 0.1 a step is linear.",
    ),
    "margin_residual": Quantity(
        OF_STEP,
        "residual of the margin",
        "Of its largest eigenvalue, relative: above 0.1 the margin is not resolved.",
    ),
    "gradient_norm": Quantity(
        OF_STEP,
        "norm of the gradient",
        "Of the gradient that the optimizer got; without one, of the loss of the probe.",
        "‖g‖",
        "loss per parameter",
    ),
    "update_norm": Quantity(
        OF_STEP, "norm of the update", "Of the optimizer's next update.", "‖u‖", "parameters"
    ),
    "parameter_norm": Quantity(
        OF_STEP, "norm of the parameters", "Of all parameters together.", "‖θ‖", "parameters"
    ),
    "update_ratio": Quantity(OF_STEP, "update over parameters", "Of the next update.", "‖u‖/‖θ‖"),
    "batch_loss": Quantity(
        OF_STEP, "loss of the batch", "Passed to the optimizer as value=.", "L", "loss"
    ),
    "gradient_scale": Quantity(
        OF_STEP,
        "scale of the gradient",
        "The optimizer's gradient over that of the named loss on the probe, along the latter. If "
        "it is not 1, you train another loss than the named one.",
    ),
    "not_finite_step": Quantity(
        OF_STEP, "first step not finite", "The first at which NaN or infinity was seen.", "", "step"
    ),
    "not_finite_steps": Quantity(
        OF_STEP, "steps not finite", "How many had NaN or infinity so far.", "", "steps"
    ),
    "status": Quantity(
        OF_STEP,
        "status",
        "0 not measured, 1 measured, 2 NaN or infinity, 4 the gradient was not finite: the next "
        "step is measured instead.",
    ),
    "seconds": Quantity(
        OF_STEP, "time", "That a `Monitor` took to measure, compilation included.", "", "s"
    ),
    # The same by layer.
    "layer_trace": Quantity(
        OF_LAYERS,
        "share of each layer",
        "Of the trace of the kernel, in rows of a monitor. A layer without a share does not learn.",
        "tr Θ_l / tr Θ",
    ),
    "leaf_shares": Quantity(
        OF_LAYERS,
        "share of each array of parameters",
        "Of the trace of the kernel, of checkpoints.",
        "tr Θ_p / tr Θ",
    ),
    "layer_gradient": Quantity(
        OF_LAYERS, "gradient by layer", "Norm.", "‖g_l‖", "loss per parameter"
    ),
    "layer_update": Quantity(OF_LAYERS, "update by layer", "Norm.", "‖u_l‖", "parameters"),
    "layer_parameter": Quantity(OF_LAYERS, "parameters by layer", "Norm.", "‖θ_l‖", "parameters"),
    # Why there is a margin, or none.
    "optimizer_status": Quantity(
        OF_OPTIMIZER, "status", "0 recognized; the record's `optimizer_status` explains the others."
    ),
    "optimizer_residual": Quantity(
        OF_OPTIMIZER, "residual", "Share of the update that its linear model does not explain."
    ),
    "margin_status": Quantity(
        OF_OPTIMIZER, "status of a checkpoint's margin", "As `optimizer_status`, of a saved state."
    ),
    # How far kernel and parameters moved from A to B, or from the first measurement.
    # Both kernels with the fixed arrays of the later one.
    "drift": Quantity(
        OF_CHANGE,
        "kernel drift",
        "‖Θ_B − Θ_A‖ / ‖Θ_A‖, scale included. Running statistics, if any, are those of B in both.",
        "D",
    ),
    "drift_scale": Quantity(
        OF_CHANGE, "scale", "⟨Θ_B, Θ_A⟩ / ‖Θ_A‖²: 1 is no change of size.", "a"
    ),
    "drift_rotation": Quantity(
        OF_CHANGE,
        "rotation",
        "Angle between the kernels: D² = (a − 1)² + (a tan φ)².",
        "φ",
        "radian",
    ),
    "drift_distance": Quantity(
        OF_CHANGE,
        "kernel distance",
        "1 − cosine between the kernels: direction without size.",
        "S",
    ),
    "drift_distance_centred": Quantity(
        OF_CHANGE,
        "centred kernel distance",
        "1 − cosine between the kernels centred over examples: 0 the same direction, 1 unrelated.",
        "S_c",
    ),
    "distance": Quantity(
        OF_CHANGE, "kernel distance of pairs", "S of each pair of checkpoints.", "S"
    ),
    "distance_centred": Quantity(
        OF_CHANGE,
        "centred kernel distance of pairs",
        "S_c of each pair of checkpoints.",
        "S_c",
    ),
    "overlap": Quantity(
        OF_CHANGE,
        "overlap of the k leading modes",
        "Share of the leading subspace of one centred kernel that lies in that of the other.",
        "‖U_AᵀU_B‖²/k",
    ),
    "velocity": Quantity(
        OF_CHANGE, "velocity", "Distance from the checkpoint before, for each step.", "", "1/step"
    ),
    "moved": Quantity(OF_CHANGE, "movement", "Of all parameters together.", "‖Δθ‖", "parameters"),
    "moved_relative": Quantity(
        OF_CHANGE, "parameter movement", "All parameters together.", "‖Δθ‖/‖θ_A‖"
    ),
    # What other fixed arrays did by themselves, where they differ.
    "share_of_fixed_arrays": Quantity(
        OF_CHANGE,
        "change by the fixed arrays",
        "‖f(θ_A, s_B) − f(θ_A, s_A)‖ / ‖f_B − f_A‖, s the fixed arrays: running statistics.",
        "Δ_s f",
    ),
    "share_of_parameters": Quantity(
        OF_CHANGE,
        "change by the parameters",
        "‖f(θ_B, s_B) − f(θ_A, s_B)‖ / ‖f_B − f_A‖: what drift, e₁ and the verdict are about. The "
        "two may point against each other.",
        "Δ_θ f",
    ),
    "fixed_arrays_drift": Quantity(
        OF_CHANGE,
        "kernel drift by the fixed arrays",
        "‖Θ(θ_A, s_B) − Θ(θ_A, s_A)‖ / ‖Θ(θ_A, s_A)‖: no motion of the parameters.",
        "D_s",
    ),
    "fixed_arrays_distance_centred": Quantity(
        OF_CHANGE,
        "centred distance by the fixed arrays",
        "Centred distance of these two kernels.",
        "S_c",
    ),
    # What Taylor models at A explain of the outputs at B.
    "e1": Quantity(
        OF_PREDICTION,
        "linearization error",
        "‖f_B − f_lin‖ / ‖f_B − f_A‖: below 0.1 the model linearized at A predicts B.",
        "e₁",
    ),
    "e2": Quantity(
        OF_PREDICTION, "quadratic error", "The same for the quadratic Taylor model at A.", "e₂"
    ),
    "agreement": Quantity(
        OF_PREDICTION,
        "same decision",
        "Share of decisions, one for each label, in which linearized model and B agree.",
    ),
}


for _name in ("alignment", "held_out_alignment", "train_alignment"):
    _words = QUANTITIES[_name].words
    QUANTITIES[f"{_name}_chance"] = Quantity(
        OF_TASK, f"{_words}, permuted labels", "Mean over all permutations: that of random labels."
    )
    QUANTITIES[f"{_name}_standard_deviation"] = Quantity(
        OF_TASK, f"{_words}, deviation", "Standard deviation over all permutations."
    )


def quantity(name: str) -> Quantity | None:
    """What a number of this name is, ends of intervals as well; None of an instrument's own."""
    if name in QUANTITIES:
        return QUANTITIES[name]
    for end in ("lower", "upper"):
        of_value = name.removesuffix(f"_{end}")
        if of_value in QUANTITIES:
            known = QUANTITIES[of_value]
            meaning = f"The {end} end of the 95 % interval of `{of_value}`."
            return dataclasses.replace(known, words=f"{known.words}, {end} end", meaning=meaning)
    return None


def axis_words(name: str) -> str:
    """What stands at the axis of a figure: the words of a number, and its unit where it has one."""
    known = quantity(name)
    if known is None:
        return name.replace("_", " ")
    has_unit = known.unit and known.unit not in known.words
    return f"{known.words}, {known.unit}" if has_unit else known.words
