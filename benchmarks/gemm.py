"""This machine's rate of float32 matrix products, in JAX: `python -m benchmarks.gemm`."""

import statistics
import time


def rates(size: int = 2048, rounds: int = 9) -> list[float]:
    """Operations per second of a square product, every round."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    product(x).block_until_ready()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        product(x).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return [2 * size**3 / taken for taken in seconds]


def main() -> None:
    for size in (512, 1024, 2048, 4096):
        measured = rates(size, rounds=5 if size > 2048 else 15)
        median = statistics.median(measured)
        best = max(measured)
        print(f"{size:5d}: {median / 1e9:6.1f} GF/s median, {best / 1e9:6.1f} GF/s best")


if __name__ == "__main__":
    main()
