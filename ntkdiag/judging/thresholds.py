"""Every threshold of a finding, a verdict or an answer of a report."""

# The stability margin: the learning rate over the largest stable one. Healthy training at the edge
# of stability hovers between 0.9 and 1.3 and may begin at 2, a catapult: Cohen et al. 2021,
# arXiv:2103.00065; Lewkowycz et al. 2020, arXiv:2003.02218. It is at the edge above MARGIN_EDGE. It
# is beyond where the lower end of the interval is above MARGIN_OVER, both in IN_A_ROW measurements
# in a row, or where it is above MARGIN_FAR in one.
MARGIN_EDGE = 0.9
MARGIN_OVER = 1.5
MARGIN_FAR = 3.0
IN_A_ROW = 3
# The largest residual of the eigenvalue behind a margin, relative, with which a margin counts.
MARGIN_RESIDUAL = 0.1

# Error of the linearized step over the change of the outputs, in two measurements in a row, or in
# the first: small networks by AdamW have up to 0.8 there without warm-up, later at most 0.32.
STEP_ERROR = 0.4

# A loss that rises above the smallest one by LOSS_RISE of the first one, and to LOSS_FACTOR times
# the smallest; or a gradient GRADIENT_GROWTH times as large as the largest of the first ones. Both
# are far above rounding: a run that has converged to rounding is quiet.
LOSS_RISE = 0.5
LOSS_FACTOR = 3.0
# The same beyond which training has diverged: an error.
LOSS_DIVERGED = 1e4
GRADIENT_GROWTH = 100.0

# A batch differs from the noise scale by this factor, at the near end of the interval: twice the
# batch takes less than 0.6, or more than 0.9, of the steps.
NOISE_FACTOR = 4.0
# Standard errors by which the scale of a gradient, beside that of the named loss, differs from 1,
# and the factor, were its examples those of the probe.
GRADIENT_DEVIATIONS = 4.0
GRADIENT_FACTOR = 1.5

# The error e1 of the network linearized at the beginning, over the change of the outputs, and the
# centred distance S_c of the kernels: below both lazy; nonlinear above NONLINEAR_E1, or above
# LAZY_E1 and NONLINEAR_DISTANCE.
LAZY_E1 = 0.1
LAZY_DISTANCE = 0.01
NONLINEAR_E1 = 0.5
NONLINEAR_DISTANCE = 0.1

# The alignment with the labels grew or fell where its odds changed by this factor, and the larger
# one is above the smaller one and above chance by so many standard deviations over permuted labels.
ALIGNMENT_GROWTH = 1.5
ALIGNMENT_DEVIATIONS = 2.0

# The doubt from which on a label is suspicious, and the share of labels that the kernel has to
# predict for a doubt to count. On 600 digits of which 0, 2 or 10 % had a wrong label (three seeds
# of each), 97 % of the labels above it were wrong, and 82 % of the wrong ones were above it.
LABEL_DOUBT = 0.5
LABELS_PREDICTED = 0.8
