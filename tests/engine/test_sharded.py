"""Examples and parameters spread over four devices, in a process that has four."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import cases, contextlib, jax, jax.numpy as jnp, numpy as np, reference
from jax.sharding import NamedSharding, PartitionSpec
from tolerance import assert_close
import ntkdiag
from ntkdiag import errors

assert len(jax.devices()) == 4
mesh = jax.make_mesh((4,), ("n",), axis_types=(jax.sharding.AxisType.{axes},))
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
assert len(kernel.array.sharding.device_set) == 4  # computed where the examples lie
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
import optax

from ntkdiag.neural_tangents import empirical_ntk_fn
from ntkdiag import predict
from ntkdiag.monitor import InMemory

ones, labels = jax.device_put(jnp.ones(4), over()), np.arange(8) % 4
for context in (False, True):
    with jax.set_mesh(mesh) if context else contextlib.nullcontext():
        kernel = ntkdiag.ntk(f, parted, spread, reduction="full")
        close(kernel, want)
        assert kernel.array.sharding == over(None, None, None, None)  # whole everywhere: anything may be done with it
        close(ntkdiag.ntk(f, copied, spread, copied_x, reduction="full"), want)
        host = ntkdiag.ntk(f, copied, spread, reduction="full", memory=small)
        close(host, want)
        assert isinstance(host.array, np.ndarray)
        close(ntkdiag.ntk(f, copied, spread, examples="joint", reduction="full"), want)
        close(jax.jit(lambda p, x: ntkdiag.ntk(f, p, x, reduction="full").array)(parted, spread), want)
        trace = lambda p, x: ntkdiag.ntk(f, p, x, reduction="trace").array.sum()
        there, here = (jax.jit(jax.grad(trace))(*at) for at in ((copied, spread), (params, x)))
        jax.tree.map(close, there, here)
        v = cases.normal(8 * want.shape[1], seed=4)
        matrix = want.reshape(v.size, v.size)
        operator = ntkdiag.NTKOperator(f, copied, spread)
        assert_close(operator @ v, matrix @ v, np.float32)
        squares = lambda outputs, y: 0.5 * jnp.mean(outputs**2)
        for model in (operator, matrix.astype(np.float32)):  # the second is laid out nowhere
            descended = predict.iterate_descent(model, None, 0.1, [5], loss=squares, f0=f(params, x))
            flowed = predict.integrate_flow(model, None, [0.5], loss=squares, f0=f(params, x))
            trained = [np.asarray(path.train) for path in (descended, flowed)]
            by_products = trained if model is operator else by_products
        assert_close(np.stack(trained), np.stack(by_products), np.float32)
        ntkdiag.spectrum(kernel)
        for kernel_fn in (empirical_ntk_fn(f, implementation=way, vmap_axes=0) for way in (1, 2, 3)):
            here = kernel_fn(x, None, params)
            for compiled in (kernel_fn, jax.jit(lambda x1, x2, p: kernel_fn(x1, x2, p))):
                close(compiled(spread, None, parted), here)
                close(compiled(spread, copied_x, parted), here)
        made_inside = lambda p, x: f(p, x) + jnp.zeros(4) + jnp.arange(4.0) * x[:, :1].reshape(-1, 1)
        for spread_or_not in (spread, copied_x, x):  # traced once for each context it runs in
            close(ntkdiag.ntk(made_inside, copied, spread_or_not, reduction="full"), want)
        g = lambda p, x: f(p, x) * copied_x[0, 0]
        try:
            ntkdiag.ntk(g, copied, spread)
        except errors.UnsupportedModelError as error:
            assert "keyword argument" in str(error)
        else:
            raise AssertionError("a closure over an array of the mesh was let through with spread examples")
        close(ntkdiag.ntk(lambda p, x: f(p, x) * ones, copied, copied_x, reduction="full"), want)  # nothing is spread
        memories = [InMemory(), InMemory(), InMemory()]
        for memory, p, at in ((memories[0], params, x), (memories[1], copied, spread)):
            with ntkdiag.Monitor(f, train=(at, labels), instruments="kernel", writers=[memory]) as monitor:
                monitor(0, p)
        if context:  # a compiled step of spread arrays needs one anyway
            options = {"every": 1, "instruments": "kernel", "writers": [memories[2]]}
            transform = ntkdiag.watch(optax.sgd(0.1), f, train=(spread, labels), **options)
            jax.jit(transform.update)(copied, transform.init(copied), copied)
            jax.effects_barrier()
        traces = [memory.rows[0]["trace"] for memory in memories if memory.rows]
        assert len(traces) == 2 + context
        assert_close(np.array(traces), np.full(len(traces), traces[0]), np.float32)
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
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    path = os.pathsep.join(
        [str(root / "tests/support"), str(root), os.environ.get("PYTHONPATH", "")]
    )
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # as in `light_compilation`
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("all right\n"), done.stderr
