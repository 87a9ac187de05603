"""Two versions of ntkdiag on the same small kernels: `python -m benchmarks.agreement --old FOLDER`.

FOLDER is another checkout; this one is the new version. Every function of the case table of the
tests (one for each way a parameter can be used) has its kernels computed in float64, by either
version in a process of its own, and what is printed is how far they are apart:

    max |K_new - K_old| / max |K_old|,    the largest over all cases, by kind of kernel.

A case that one version refuses and the other computes is a difference too, and is named.
"""

import argparse
import inspect
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks.versions import ROOT, stage

SUPPORT = os.path.join(
    os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "tests/support"
)
# Kinds of kernels: options of `ntk`, and whether the columns are other examples than the rows.
KINDS: dict[str, tuple[dict[str, Any], bool]] = {
    "trace": ({"reduction": "trace"}, False),
    "full": ({"reduction": "full"}, False),
    "diagonal": ({"reduction": "diagonal"}, False),
    "full, other columns": ({"reduction": "full"}, True),
    "full, per leaf": ({"reduction": "full", "per_leaf": True, "preconditioner": 2.0}, False),
}


def write(path: str) -> None:
    """Compute every kernel with the package that is imported here, and write them to a file."""
    sys.path.insert(0, SUPPORT)
    import cases
    import jax

    jax.config.update("jax_enable_x64", True)
    kernels = {}
    for name, make in cases.CASES.items():
        f, params, x = make()
        params, x = _in_float64(params), _in_float64(x)
        for kind, (options, with_columns) in KINDS.items():
            for leaf, array in _kernels(f, params, x, options, with_columns).items():
                kernels[f"{name} | {kind} | {leaf}"] = array
        jax.clear_caches()
    np.savez(path, **kernels)


def _kernels(
    f: Any, params: Any, x: Any, options: dict[str, Any], with_columns: bool
) -> dict[str, np.ndarray]:
    """The kernel, and those of its leaves by name; a refusal is the name of its exception."""
    import jax

    import ntkdiag

    # Older checkouts call the reduction `outputs`.
    known = inspect.signature(ntkdiag.ntk).parameters
    if "reduction" not in known:
        options = {**options, "outputs": options["reduction"]}
        del options["reduction"]
    columns = None
    if with_columns:
        columns = jax.tree.map(lambda leaf: leaf[::-1][:2], x)
    try:
        kernel = ntkdiag.ntk(f, params, x, columns, **options)
    except Exception as error:
        return {"refused": np.asarray(type(error).__name__)}
    arrays = {"all": np.asarray(kernel.array)}
    for name, of_leaf in (kernel.leaves or {}).items():
        arrays[name] = np.asarray(of_leaf.array)
    return arrays


def _in_float64(tree: Any) -> Any:
    """The same numbers with more digits; integers stay as they are."""
    import jax
    import jax.numpy as jnp

    def wider(leaf: Any) -> Any:
        is_floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, jnp.float64) if is_floating else jnp.asarray(leaf)

    return jax.tree.map(wider, tree)


def difference(new: np.ndarray, old: np.ndarray) -> float:
    """Largest difference over the largest entry; infinite where they are not of one shape."""
    if new.shape != old.shape:
        return np.inf
    if new.dtype.kind == "U" or old.dtype.kind == "U":  # names of exceptions
        return 0.0 if new == old else np.inf
    apart = np.abs(new - old).max(initial=0.0)
    largest = np.abs(old).max(initial=0.0)
    return float(apart / largest) if apart else 0.0


def main(argv: list[str] | None = None) -> int:
    """Compute, compare and print; 1 where two kernels differ by more than `--within`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agreement", description=__doc__)
    parser.add_argument("--old", help="a folder that holds another `ntkdiag`")
    parser.add_argument("--within", type=float, default=1e-12)
    parser.add_argument("--write", help="only compute, with the package that is imported")
    arguments = parser.parse_args(argv)
    if arguments.write:
        write(arguments.write)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        new, old = _computed_by_both(arguments.old, folder)
    return _report(new, old, arguments.within)


def _computed_by_both(old: str, folder: str) -> list[dict[str, np.ndarray]]:
    """The kernels of both versions by name, new ones first."""
    results = []
    for number, checkout in enumerate((ROOT, old)):
        path = os.path.join(folder, f"{number}.npz")
        with stage(checkout) as root:
            command = [sys.executable, "-m", "benchmarks.agreement", "--write", path]
            subprocess.run(command, check=True, cwd=root, env={**os.environ, "PYTHONPATH": root})
        with np.load(path) as kernels:
            results.append(dict(kernels))
    return results


def _report(new: dict[str, np.ndarray], old: dict[str, np.ndarray], within: float) -> int:
    """Print the largest difference of every kind, and all that are too large."""
    largest: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    counts = dict.fromkeys(KINDS, 0)
    too_large = [f"{key}: only one version has it" for key in new.keys() ^ old.keys()]
    for key in new.keys() & old.keys():
        kind = key.split(" | ")[1]
        apart = difference(new[key], old[key])
        counts[kind] += 1
        largest[kind] = max(largest[kind], apart)
        if not apart <= within:
            too_large.append(f"{key}: {apart:.1e}")
    for kind in KINDS:
        print(f"{kind:22} {counts[kind]:5} kernels, largest difference {largest[kind]:.1e}")
    print("\n".join(sorted(too_large)))
    return int(bool(too_large))


if __name__ == "__main__":
    sys.exit(main())
