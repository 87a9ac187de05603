"""Run every program of tests/cases in a process of its own, and print what each says.

    python .ci/run_cases.py             # all of them
    python .ci/run_cases.py fault_*     # some, by their names

A program prints `ok`, or `FAILS: ...`, as its last line; one that is silent, or takes too long,
fails. Two run at a time.
"""

import concurrent.futures
import fnmatch
import pathlib
import subprocess
import sys
import time

CASES = pathlib.Path(__file__).parents[1] / "tests" / "cases"
SECONDS = 300
AT_A_TIME = 2


def run(program: pathlib.Path) -> bool:
    """Run one program and print its line; whether it says ok."""
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, timeout=SECONDS
        )
        said = (done.stdout.strip() or done.stderr.strip() or "FAILS: no word").splitlines()[-1]
        is_ok = done.returncode == 0 and said.startswith("ok")
    except subprocess.TimeoutExpired:
        said, is_ok = f"FAILS: no end in {SECONDS} s", False
    print(f"{program.stem:45s} {time.monotonic() - begun:4.0f} s  {said[:200]}", flush=True)
    return is_ok


def main() -> int:
    """Run those that are asked for; 0 where all say ok."""
    patterns = sys.argv[1:] or ["*"]
    programs = [
        path
        for path in sorted(CASES.glob("*.py"))
        if any(fnmatch.fnmatch(path.stem, pattern) for pattern in patterns)
    ]
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        results = list(pool.map(run, programs))
    print(f"{sum(results)} of {len(results)} say ok")
    return int(not results or not all(results))


if __name__ == "__main__":
    sys.exit(main())
