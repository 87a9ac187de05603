"""A network of two layers, tanh(x A) B, and its dense Jacobian by hand: NumPy alone, so that nothing is compiled."""

import numpy as np


def outputs(first, second, x):
    """The outputs [n o] in float64."""
    first, second, x = (np.asarray(a, np.float64) for a in (first, second, x))
    return np.tanh(x @ first) @ second


def jacobian(first, second, x):
    """The derivatives by the first weights [n o (i h)] and by the second [n o (h o')], in float64."""
    first, second, x = (np.asarray(a, np.float64) for a in (first, second, x))
    hidden = np.tanh(x @ first)
    n, o = len(x), second.shape[1]
    # d f_o / d A_ih = x_i (1 - hidden_h^2) B_ho
    by_first = np.einsum("ni,nh,ho->noih", x, 1 - hidden**2, second)
    # d f_o / d B_hp = hidden_h when o = p, else 0
    by_second = np.einsum("nh,op->nohp", hidden, np.eye(o))
    return by_first.reshape(n, o, -1), by_second.reshape(n, o, -1)
