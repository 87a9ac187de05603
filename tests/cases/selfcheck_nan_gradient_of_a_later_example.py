"""A padded example, all zeros, has a NaN gradient behind `where`; selfcheck says that nothing is wrong (jax#347, jax#3058)."""

import sys

import jax.numpy as jnp
import numpy as np

import ntkdiag

rng = np.random.default_rng(0)
params = {"w": rng.normal(size=(4, 3)).astype("f")}


def unit(params, x):
    h = x @ params["w"]
    empty = (x == 0).all(1, keepdims=True)
    return jnp.where(empty, 0.0, h / jnp.linalg.norm(h, axis=1, keepdims=True))


failed = []
for place in (0, 2, 7):
    x = rng.normal(size=(8, 4)).astype("f")
    x[place] = 0
    nan = np.isnan(ntkdiag.ntk(unit, params, x).array)
    assert nan[place].all()
    assert np.isfinite(unit(params, x)).all()
    check = ntkdiag.selfcheck(unit, params, x)
    if (
        check.ok and "example" not in check["gradients"].text
    ):  # saying of how many examples would do
        failed.append(
            f"zero example at {place}: ok, {check['gradients'].text!r}, and {nan.sum()} NaN in the kernel"
        )
if failed:
    print("FAILS:", " | ".join(failed))
    sys.exit(1)
print("ok")
