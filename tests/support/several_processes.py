"""One JAX program of several processes on this machine, which speak over the loopback interface."""

import os
import socket
import subprocess
import sys

BEGIN = """
import os, signal, sys
import jax, numpy as np
port, number, count, *arguments = sys.argv[1:]
number, count = int(number), int(count)
jax.distributed.initialize(
    f"127.0.0.1:{port}", num_processes=count, process_id=number,
    coordinator_bind_address=f"127.0.0.1:{port}", initialization_timeout=60,
    heartbeat_timeout_seconds=10, shutdown_timeout_seconds=60,
)
import ntkdiag
from ntkdiag import errors

def say(*words):
    print("SAYS", *words, flush=True)

def one_line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
"""
SECONDS = 240  # after which a process is taken for one that hangs


class Program:
    """Its processes, from their start on."""

    def __init__(self, script, count, *arguments, stderr=subprocess.PIPE):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_PREEMPTION_SERVICE": "0",
            "XLA_FLAGS": "--xla_cpu_collective_timeout_seconds=60",
        }
        self.processes = []
        for number in range(count):
            command = [sys.executable, "-c", BEGIN + script, port, str(number), str(count)]
            process = subprocess.Popen(
                [*command, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            )
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait_for(self, number, word):
        """Read what a process says until it says this; all it said."""
        said = []
        for line in self.processes[number].stdout:
            said.append(line.removeprefix("SAYS ").rstrip("\n"))
            if word in line:
                return said
        raise AssertionError(f"process {number} ended and said {said}")

    def ends(self):
        """What each process said, what it wrote to its error stream, and its exit status."""
        ends = []
        for process in self.processes:
            out, err = process.communicate(timeout=SECONDS)
            said = [
                line.removeprefix("SAYS ") for line in out.splitlines() if line.startswith("SAYS ")
            ]
            ends.append((said, err, process.returncode))
        return ends


def said_by(script, count, *arguments):
    """What each of the processes says of a program that comes to its end."""
    with Program(script, count, *arguments) as program:
        ends = program.ends()
    assert [status for _, _, status in ends] == [0] * count, ends
    return [said for said, _, _ in ends]
