"""Which examples train themselves most: mislabelled ones, and hard ones."""

import jax.numpy as jnp
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.analysis.noise_scale import read_gradient_kernel
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.scalars import AnyArray, Number, require_positive


@errors.public
@keeps_float64
def self_influence(kernel: KernelLike, *, learning_rate: Number = 1.0) -> Float[AnyArray, " n"]:
    """By how much a step on an example alone lowers its own loss, to first order: eta G[i, i].

    An example that agrees with others is learned from them, and has a small gradient where they are
    learned. A mislabelled or an odd one is learned from itself alone: its gradient stays large.
    Sort by it and look at the first twenty. Summed over the checkpoints of a run it is the
    self-influence of TracIn; `track(..., gradient_kernel=True)` keeps it.

    It finds large gradients, whatever they come from: of examples with large inputs, too. On digits
    with flipped labels the loss found as many, and `leave_one_out` of the tangent kernel more: see
    the guide.

    Cost: none.

    Source: Pruthi et al. 2020 (TracIn), arXiv:2002.08484, section 4.

    Args:
        kernel: The `gradient_kernel` of some examples, or a Gram matrix of gradients `[n n]`.
        learning_rate: eta; 1 for the squared norm of each gradient.

    Returns:
        `[n]`, in units of the loss.

    Raises:
        InvalidInputError: The kernel is another one than that of gradients, or is not finite; or
            the rate is not positive.

    Example:
        >>> import numpy as np
        >>> gradients = np.array([[1.0, 0.0], [1.0, 0.1], [-3.0, 0.0]])
        >>> print(self_influence(gradients @ gradients.T))
        [1.   1.01 9.  ]
    """
    require_positive(learning_rate, "learning_rate")
    return learning_rate * jnp.diagonal(read_gradient_kernel(kernel))
