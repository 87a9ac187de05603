"""Losses as objects: their value, how they read labels, and their curvature in the outputs.

A loss is L(f) = (1/D) sum_i l(f_i, y_i) over examples (and positions, for outputs [N T V]).
Different values of D give different learning rates, so D is a part of the loss:

    MSE()                    l = 1/2 ||f - y||^2, summed over outputs; D = N
    MSE(denominator=N * C)   the mean over outputs too, as neural-tangents has it
    CrossEntropy()           l = -log softmax(f)[y], over the last axis; D = N T
    SigmoidCrossEntropy()    l = -log sigmoid(+-f), summed over outputs; D = N
    loss(outputs, y)         any function that returns one number

Examples and positions may have weights, `train=(x, y, weights)` or `Weighted(y, weights)`:
L = sum w l / sum w. `CrossEntropy(ignore=-100)` leaves out positions that are labelled -100.

Wherever ntkdiag takes `loss=`, it takes one of these objects, the name of one ("mse",
"cross_entropy", "sigmoid_cross_entropy"), or a function `loss(outputs, y)`. None leaves out all
numbers that depend on the loss.
"""

from ntkdiag.losses.loss import Loss as Loss
from ntkdiag.losses.means import MSE as MSE
from ntkdiag.losses.means import CrossEntropy as CrossEntropy
from ntkdiag.losses.means import SigmoidCrossEntropy as SigmoidCrossEntropy
from ntkdiag.losses.targets import Weighted as Weighted
