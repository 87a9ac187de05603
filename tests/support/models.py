"""One table of small models of every library: `CASES[id]()` gives `(functional, x)`.

Batch of 3, at most 6 outputs per example, a few hundred to a few thousand float32 parameters, all
of them random: also biases, scales and running statistics, where zeros and ones would hide a
mistake.
"""

import functools

import models_equinox
import models_linen
import models_nnx

CASES = {
    name: functools.cache(builder)
    for table in (models_linen.CASES, models_nnx.CASES, models_equinox.CASES)
    for name, builder in table.items()
}
