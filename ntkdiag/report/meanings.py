"""Name, symbol and meaning of every quantity a report shows.

Texts may hold fields in braces. `rows` fills them when a report is made: from the facts of the
comparison, and besides with `k`, a number of modes, `loss_capital`, the loss with a capital first
letter, and `at_rate`, the learning rates of the margins.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Meaning:
    """How a quantity is presented.

    Attributes:
        name: In words; may hold fields.
        symbol: As in the papers; may be empty, or hold fields.
        text: What it tells, with its convention; may hold fields such as ``{update_rule}``.
    """

    name: str
    symbol: str
    text: str


MEANINGS = {
    # Each kernel by itself.
    "trace": Meaning("trace", "tr Θ", "Sum of the eigenvalues: the overall speed of learning."),
    "largest": Meaning(
        "largest eigenvalue",
        "λ₁",
        "Speed of the fastest mode; for squared error it sets the critical learning rate.",
    ),
    "participation": Meaning(
        "participation ratio",
        "PR",
        "(Σλ)² / Σλ²: effective number of modes, weighted to the large ones.",
    ),
    "entropy": Meaning(
        "entropy rank",
        "exp H",
        "exp(−Σ p log p), p = λ/Σλ, resolved eigenvalues only: falls when the kernel compresses.",
    ),
    "resolved": Meaning(
        "resolved eigenvalues",
        "",
        "Eigenvalues above the noise floor; what lies below is rounding, not a number.",
    ),
    "floor": Meaning(
        "noise floor",
        "ε √n λ₁",
        "Unit roundoff of the kernel's dtype × √size × λ₁, or that of the model × λ₁ if larger.",
    ),
    # Each kernel beside labels, loss and update rule.
    "loss": Meaning("loss, {kernel_probe}", "L", "{loss_capital}."),
    "loss_held_out": Meaning("loss, held out", "L", "The same of examples not trained on."),
    "accuracy": Meaning(
        "accuracy, {kernel_probe}",
        "",
        "Share of labels that the outputs decide for: by the largest along the last axis or, under "
        "a sigmoid, by the sign.",
    ),
    "accuracy_held_out": Meaning("accuracy, held out", "", "The same of examples not trained on."),
    "alignment": Meaning(
        "alignment, {label_probe}, {reduction}",
        "cKTA",
        "Centred alignment of the {reduction} kernel with the labels, of examples {label_probe}; "
        "with another reduction it is another number.",
    ),
    "alignment_chance": Meaning(
        "the same of permuted labels",
        "",
        "Mean and standard deviation over all permutations: what labels that mean nothing get.",
    ),
    "alignment_above": Meaning(
        "alignment above chance, {label_probe}, {reduction}",
        "",
        "(cKTA − chance) / (1 − chance): rises from 0 when the fast directions become the label "
        "directions.",
    ),
    "alignment_of_train": Meaning(
        "the same of examples trained on",
        "",
        "Above chance, of their {reduction} kernel: after training a kernel knows their labels.",
    ),
    "alignment_gap": Meaning(
        "gap, trained on − held out",
        "",
        "Above chance: how much better the kernel fits the very examples it was trained on.",
    ),
    "power": Meaning(
        "label power, {label_probe}, top {k}",
        "C({k})",
        "Share of the labels that lies in the {k} fastest modes; kernel and labels centred.",
    ),
    "leave_one_out": Meaning(
        "leave-one-out error, {label_probe}",
        "",
        "Squared error of kernel regression on an example left out, over the variance of the "
        "labels: 1 is no better than their mean.",
    ),
    "critical": Meaning(
        "critical learning rate",
        "η_c",
        "Above it full-batch gradient descent with {update_rule} diverges on the quadratic model "
        "of the loss at this point.",
    ),
    "learning_rate": Meaning(
        "learning rate", "η", "Of the next step from each side, as its optimizer has it there."
    ),
    "margin": Meaning(
        "stability margin",
        "η/η_c",
        "{at_rate}. Below 0.5 slack, 0.5 to 0.8 stable, 0.8 to 1.1 edge "
        "of stability, above it a catapult, or divergence.",
    ),
    # How far kernel and parameters moved from A to B.
    "drift": Meaning("kernel drift", "D", "‖Θ_B − Θ_A‖ / ‖Θ_A‖, scale included."),
    "scale": Meaning("scale", "a", "⟨Θ_B, Θ_A⟩ / ‖Θ_A‖²: 1 is no change of size."),
    "rotation": Meaning("rotation", "φ", "Angle between the kernels: D² = (a − 1)² + (a tan φ)²."),
    "distance": Meaning(
        "kernel distance", "S", "1 − cosine between the kernels: direction without size."
    ),
    "distance_centred": Meaning(
        "centred kernel distance",
        "S_c",
        "1 − cosine between the kernels centred over examples: 0 the same direction, 1 unrelated.",
    ),
    "overlap": Meaning(
        "overlap of the {k} leading modes",
        "‖U_AᵀU_B‖²/{k}",
        "How much of the leading subspace of one centred kernel is that of the other.",
    ),
    "moved": Meaning("parameter movement", "‖Δθ‖/‖θ_A‖", "All parameters together."),
    # What other fixed arrays did by themselves, where they differ.
    "share_fixed": Meaning(
        "change by the fixed arrays",
        "Δ_s f",
        "‖f(θ_A, s_B) − f(θ_A, s_A)‖ / ‖f_B − f_A‖, s the fixed arrays: running statistics.",
    ),
    "share_parameters": Meaning(
        "change by the parameters",
        "Δ_θ f",
        "‖f(θ_B, s_B) − f(θ_A, s_B)‖ / ‖f_B − f_A‖: what drift, e₁ and the verdict are about. The "
        "two may point against each other.",
    ),
    "drift_fixed": Meaning(
        "kernel drift by the fixed arrays",
        "D_s",
        "‖Θ(θ_A, s_B) − Θ(θ_A, s_A)‖ / ‖Θ(θ_A, s_A)‖: no motion of the parameters.",
    ),
    "distance_fixed": Meaning(
        "centred distance by the same",
        "S_c",
        "Centred distance of these two kernels: features did not move by it.",
    ),
    # What Taylor models at A explain of the outputs at B.
    "e1": Meaning(
        "linearization error",
        "e₁",
        "‖f_B − f_lin‖ / ‖f_B − f_A‖: below 0.1 the model linearized at A predicts B.",
    ),
    "e2": Meaning("quadratic error", "e₂", "The same for the quadratic Taylor model at A."),
    "rms": Meaning(
        "prediction error",
        "rms",
        "Of the linearized model at B's parameters, in units of the outputs.",
    ),
    "max": Meaning(
        "largest prediction error", "max", "Over examples and outputs, in units of the outputs."
    ),
    "same_decision": Meaning(
        "same decision of A and B",
        "",
        "Share of decisions on the probe, one for each label, in which A and B agree.",
    ),
    "agreement": Meaning(
        "same decision",
        "",
        "Share of decisions, one for each label, in which linearized model and B agree.",
    ),
}
