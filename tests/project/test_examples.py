"""Every example runs as a script, from an empty folder, and says what it promises."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
MEASURED = r"step  80 .*margin \d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]"
SCRIPTS = {
    "track_checkpoints": (r"Verdict\(", ["linearization.png", "run/track.jsonl"]),
    "linear_baseline": (r"linearized at step 30: .*%", ["linear_baseline.png"]),
    "lora": (r"LinearizationGap\(.* e1 1\.", []),
    "fsdp": (r"devices of a parameter: 8(?s:.*)step  60 .*margin 0\.\d", []),
    "pinn": (r"margin 0\.\d\d, largest error of u 0\.00", []),
    "wandb_offline": (r"margin 0\.\d\d at step 100", ["wandb/offline-run-*/*.wandb"]),
    "wide_networks": (r"gap e1 +against α: slope -(0\.9|1\.0)", ["wide_networks.png"]),
    "hook_equinox": (MEASURED, []),
    "hook_flax_linen": (MEASURED, []),
    "hook_nnx": (MEASURED, []),
    "hook_scan": (MEASURED, []),
    "ntk_tutorial_flax": (r"\(20, 5, 10, 10\)(?s:.*)agree with jacobian_contraction", []),
}


def test_every_example_is_listed():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == SCRIPTS.keys()
    assert len(names) <= 12
    assert all(path.read_text().count("\n") < 60 for path in EXAMPLES.glob("*.py"))
    assert set(re.findall(r"`(\w+)\.py`", (EXAMPLES / "README.md").read_text())) == names


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name, tmp_path):
    if name == "wandb_offline":
        pytest.importorskip("wandb", reason="W&B is installed in the section trackers of .ci/run")
    expected, files = SCRIPTS[name]
    environment = {**os.environ, "MPLBACKEND": "agg", "PYTHONWARNINGS": "error"}
    script = EXAMPLES / f"{name}.py"
    run = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert re.search(expected, run.stdout), run.stdout
    for file in files:
        [path] = tmp_path.glob(file)
        assert path.stat().st_size > 0
