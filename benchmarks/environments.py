"""Environments for the peers: `python -m benchmarks.environments FOLDER --python python3.11`.

neural-tangents 0.6.5 needs jax 0.4.25, Python 3.11 or older, numpy 1 and scipy before 1.13; it is
installed without its dependencies, since those bring TensorFlow. Both environments need a few
gigabytes of disk.
"""

import argparse
import os
import pathlib
import subprocess

WITHOUT_DEPENDENCIES = {"nt": ["neural-tangents==0.6.5"], "torch": []}
PACKAGES = {
    "nt": ["jax==0.4.25", "jaxlib==0.4.25", "numpy<2", "scipy<1.13", "frozendict"],
    "torch": ["torch", "numpy"],
}


def make(folder: pathlib.Path, name: str, python: str) -> pathlib.Path:
    """Create one environment and return its interpreter."""
    subprocess.run([python, "-m", "venv", str(folder / name)], check=True)
    interpreter = folder / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [str(interpreter), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *PACKAGES[name]], check=True)
    if WITHOUT_DEPENDENCIES[name]:
        subprocess.run([*install, "--no-deps", *WITHOUT_DEPENDENCIES[name]], check=True)
    return interpreter


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.environments", description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--python", default="python3.11")
    arguments = parser.parse_args()
    for name in PACKAGES:
        print(f"--{name}-python {make(arguments.folder, name, arguments.python)}")


if __name__ == "__main__":
    main()
