"""Tests that want several devices: in a process of their own."""

import os
import pathlib
import subprocess
import sys


def on_devices(count, file, call):
    """Call a function of a test file, such as "holds()", in a process with so many CPU devices."""
    file = pathlib.Path(file)
    # XLA's fusions for CPU get backward passes of normalisation wrong, of which `watch` warns.
    right = "--xla_cpu_experimental_ynn_fusion_type="
    devices = f"--xla_force_host_platform_device_count={count}"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import {file.stem} as t; t.{call}; print('held')"],
        env={
            **os.environ,
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {right} {devices}",
            "PYTHONPATH": os.pathsep.join([str(file.parent), *sys.path]),
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("held\n")
