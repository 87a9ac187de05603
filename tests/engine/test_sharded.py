"""Examples and parameters spread over eight devices, in a process that has eight."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import cases, contextlib, jax, jax.numpy as jnp, numpy as np, reference
from jax.sharding import NamedSharding, PartitionSpec
from reference import assert_close
import ntkdiag

assert len(jax.devices()) == 8
mesh = jax.make_mesh((4, 2), ("n", "m"), axis_types=(jax.sharding.AxisType.{axes},) * 2)
over = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
f, params, _ = cases.mlp()
x = cases.normal(8, 5, seed=3)
want = reference.ntk(f, params, x)
spread, copied, copied_x = jax.device_put(x, over("n")), jax.device_put(params, over()), jax.device_put(x, over())
close = lambda kernel, want: assert_close(kernel, want, np.float32)
parted = {{**copied, "v": jax.device_put(params["v"], over(None, "n"))}}  # a weight spread over its outputs
small = 8_000
assert not ntkdiag.plan(f, copied, spread, reduction="full", memory=small).blocks.one_tile
"""
AUTOMATIC = """
kernel = ntkdiag.ntk(f, copied, spread, reduction="full")
close(kernel, want)
assert len(kernel.array.sharding.device_set) == 8  # computed where the examples lie
close(ntkdiag.ntk(f, copied, spread, spread[:4], reduction="full"), want[:, :, :4])
close(ntkdiag.ntk(f, copied, spread, reduction="full", memory=small), want)
close(ntkdiag.ntk(f, parted, spread, reduction="full"), want)

inside = jax.jit(lambda p, x: ntkdiag.ntk(f, p, x, reduction="full").array, out_shardings=over("n"))
close(inside(parted, spread), want)

bound = lambda p, x: f({**p, "w": jax.lax.with_sharding_constraint(p["w"], over())}, x)
close(ntkdiag.ntk(bound, copied, spread, reduction="full"), want)
assert {row.factor for row in ntkdiag.plan(bound, copied, spread, reduction="full").rows} == {"outer"}
"""
EXPLICIT = """
from ntkdiag.neural_tangents import empirical_ntk_fn

for context in (False, True):
    with jax.set_mesh(mesh) if context else contextlib.nullcontext():
        kernel = ntkdiag.ntk(f, parted, spread, reduction="full")
        close(kernel, want)
        assert len(kernel.array.sharding.device_set) == 8
        close(ntkdiag.ntk(f, copied, spread, copied_x, reduction="full"), want)
        close(ntkdiag.ntk(f, copied, spread, reduction="full", memory=small), want)
        close(ntkdiag.ntk(f, copied, spread, examples="joint", reduction="full"), want)
        close(jax.jit(lambda p, x: ntkdiag.ntk(f, p, x, reduction="full").array)(parted, spread), want)
        v = cases.normal(8 * want.shape[1], seed=4)
        assert_close(ntkdiag.NTKOperator(f, copied, spread) @ v, want.reshape(v.size, v.size) @ v, np.float32)
        for way in (1, 2, 3):
            kernel_fn = empirical_ntk_fn(f, implementation=way, vmap_axes=0)
            close(kernel_fn(spread, None, parted), kernel_fn(x, None, params))
"""


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["Explicit", "Auto"])
def test_sharded_inputs(axes):
    script = (
        BEGIN.format(axes=axes)
        + (AUTOMATIC if axes == "Auto" else EXPLICIT)
        + 'print("all right")\n'
    )
    root = Path(__file__).parents[2]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    path = os.pathsep.join(
        [str(root / "tests/support"), str(root), os.environ.get("PYTHONPATH", "")]
    )
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("all right\n"), done.stderr
