"""tree_serialise_leaves(path, (model, opt_state)), the usual Equinox training checkpoint, compared by path (equinox#172, #186)."""

import pathlib
import sys
import tempfile

import equinox as eqx
import jax
import numpy as np
import optax

import ntkdiag

x, y = np.random.default_rng(0).normal(size=(8, 4)).astype("f"), np.arange(8) % 3
tx, folder = optax.adam(1e-3), pathlib.Path(tempfile.mkdtemp())


def both(seed):
    model = eqx.nn.MLP(4, 3, 8, 1, key=jax.random.key(seed))
    return model, tx.init(eqx.filter(model, eqx.is_array))


for seed in (0, 1):
    eqx.tree_serialise_leaves(folder / f"{seed}.eqx", both(seed))
right = ntkdiag.compare(both(0)[0], both(1)[0], train=(x, y)).drift.relative
by_hand = [
    ntkdiag.load_params(folder / f"{seed}.eqx", model=both(5)) for seed in (0, 1)
]  # this works
assert np.isclose(
    ntkdiag.compare(*by_hand, model=both(5)[0], train=(x, y)).drift.relative, right, rtol=1e-4
)
try:
    got = ntkdiag.compare(
        folder / "0.eqx", folder / "1.eqx", model=both(5), train=(x, y)
    ).drift.relative
except Exception as error:
    print(f"FAILS: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(1)
if not np.isclose(got, right, rtol=1e-4):
    print(f"FAILS: drift {got}, in memory {right}")
    sys.exit(1)
print("ok")
