"""Examples and parameters spread over four devices, in a process that has four."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import cases, jax, jax.numpy as jnp, numpy as np, reference
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tolerance import assert_close
import ntkdiag

assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()), ("n",))
over = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
f, params, _ = cases.mlp()
x = cases.normal(8, 5, seed=3)
want = reference.ntk(f, params, x)
spread, copied = jax.device_put(x, over("n")), jax.device_put(params, over())
close = lambda kernel, want: assert_close(kernel, want, np.float32)

kernel = ntkdiag.ntk(f, copied, spread, outputs="full")
close(kernel, want)
assert len(kernel.array.sharding.device_set) == 4  # computed where the examples lie
close(ntkdiag.ntk(f, copied, spread, spread[:4], outputs="full"), want[:, :, :4])
small = 10_000
assert not ntkdiag.plan(f, copied, spread, outputs="full", memory=small).blocks.whole
close(ntkdiag.ntk(f, copied, spread, outputs="full", memory=small), want)

parted = {**copied, "v": jax.device_put(params["v"], over(None, "n"))}  # a weight spread over its outputs
close(ntkdiag.ntk(f, parted, spread, outputs="full"), want)

inside = jax.jit(lambda p, x: ntkdiag.ntk(f, p, x, outputs="full").array, out_shardings=over("n"))
close(inside(parted, spread), want)

bound = lambda p, x: f({**p, "w": jax.lax.with_sharding_constraint(p["w"], over())}, x)
close(ntkdiag.ntk(bound, copied, spread, outputs="full"), want)
assert {row.factor for row in ntkdiag.plan(bound, copied, spread, outputs="full").rows} == {"outer"}
print("all right")
"""


def test_sharded_inputs():
    here = Path(__file__).parent
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("all right\n"), done.stderr
