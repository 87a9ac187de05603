"""Two processes of one JAX program call track(out=) with one folder, as every SPMD script does: both must go on, and one write."""

import os
import socket
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
CODE = """
import sys, jax, numpy as np
port, number, out = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=int(number), coordinator_bind_address=f"127.0.0.1:{port}", initialization_timeout=60, heartbeat_timeout_seconds=20, shutdown_timeout_seconds=20)
import ntkdiag
rng = np.random.default_rng(0)
x, w = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
w = jax.device_put(w, jax.local_devices()[0])
try:
    run = ntkdiag.track({t: {"w": w * (1 + t)} for t in range(3)}, model=lambda p, x: x @ p["w"], held_out=(x, None), out=out)
    print("RESULT", run.steps, flush=True)
except Exception as error:
    print("RESULT", type(error).__name__, " ".join(str(error).split())[:130], flush=True)
"""
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
out = tempfile.mkdtemp() + "/run"
env = {
    **os.environ,
    "JAX_ENABLE_PREEMPTION_SERVICE": "0",
    "XLA_FLAGS": "--xla_cpu_collective_timeout_seconds=60",
}
processes = [
    subprocess.Popen(
        [sys.executable, "-c", CODE, port, str(i), out],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=env,
    )
    for i in (0, 1)
]
said = []
for process in processes:
    try:
        text = process.communicate(timeout=200)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        text = "RESULT no answer in 200 s"
    said.append(
        next(
            (line[7:] for line in text.splitlines() if line.startswith("RESULT")),
            f"exit {process.returncode}",
        )
    )
good = said == ["[0, 1, 2]"] * 2
print("ok" if good else f"FAILS: process 0: {said[0]}; process 1: {said[1]}")
sys.exit(not good)
