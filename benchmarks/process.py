"""The runner's side of a worker: requests with a time limit, and a watch on the memory it takes."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from typing import Any

from benchmarks import memory

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Failed(Exception):
    """A peer could not do it; the text is the reason, for the table."""


class Process:
    """A worker process.

    Args:
        python: Interpreter of the peer's environment.
        arguments: Of `python -m`.
        memory_limit: Resident bytes at which it is stopped.
        environment: Variables to set.
        root: The folder that holds the packages `benchmarks` and `ntkdiag`.
    """

    def __init__(
        self,
        python: str,
        arguments: list[str],
        memory_limit: int,
        environment: dict[str, str] | None = None,
        root: str = ROOT,
    ) -> None:
        environ = {**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._process = subprocess.Popen(
            [python, "-m", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=root,
            env=environ,
        )
        self._limit = memory_limit
        self._answers: queue.Queue[str] = queue.Queue()
        self._last = ""
        self._readers = [
            threading.Thread(target=read, daemon=True)
            for read in (self._read_answers, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def ask(self, seconds: float, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer; without one, wait for the worker to be ready.

        Raises:
            Failed: No answer within the limit, too much memory, a crash, or an error that the peer
                reported.
        """
        if request:
            try:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            except OSError:
                raise Failed(self._death()) from None
        answer = json.loads(self._wait(seconds))
        if "failed" in answer:
            raise Failed(_reason(answer["failed"]))
        return answer

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):  # what was not yet sent is lost, as the worker is
                stream.close()

    def _wait(self, seconds: float) -> str:
        """The next answer, while the worker lives and stays within its memory."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                return self._answers.get(timeout=0.02)
            except queue.Empty:
                self._check()
        self.close()
        raise Failed(f"more than {seconds:.0f} s")

    def _check(self) -> None:
        """Refuse to wait longer for a worker that has died or takes too much memory."""
        if self._process.poll() is not None and self._answers.empty():
            raise Failed(self._death())
        try:
            taken = memory.resident(self._process.pid)
        except OSError:
            return
        if taken > self._limit:
            self.close()
            raise Failed(f"out of memory (more than {self._limit / 2**30:.0f} GiB)")

    def _death(self) -> str:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return f"out of memory ({name})" if name == "SIGKILL" else f"crashed ({name})"
        return f"ended with {code}: {_reason(self._last)}"

    def _read_answers(self) -> None:
        for line in self._process.stdout:
            self._answers.put(line)

    def _read_errors(self) -> None:
        for line in self._process.stderr:
            self._last = line.strip() or self._last


def _reason(text: str) -> str:
    """The beginning of an error, in a table cell."""
    words = ("RESOURCE_EXHAUSTED", "Out of memory", "can't allocate memory", "MemoryError")
    if any(word in text for word in words):
        return "out of memory"
    return text.strip().splitlines()[0][:80] if text.strip() else "no message"
