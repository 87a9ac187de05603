"""Every example runs as a script, from an empty folder, and says what it promises."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
MEASURED = r"step  80 .*margin \d+\.\d\d \[\d+\.\d\d, \d+\.\d\d\]  trace \d.*step_error \d"
SCRIPTS = {
    "track_checkpoints": ("written: linearization.png", ["linearization.png", "run/track.jsonl"]),
    "linear_baseline": (r"linearized at step 30 .*%", ["linear_baseline.png"]),
    "silent_alignment": (r"alignment 0\.55\d, in theory 0\.555", ["silent_alignment.png"]),
    "wide_networks": (r"gap +against α: slope -(0\.9|1\.0)", ["wide_networks.png"]),
    "which_examples": (r"of the twenty to look at first 1\d have a wrong label", []),
    "hook_equinox": (MEASURED, []),
    "hook_flax_linen": (MEASURED, []),
    "hook_nnx": (MEASURED, []),
    "hook_scan": (MEASURED, []),
    "optimizer_alone": (r"warning step 120 gradient-not-finite", ["run/watch.jsonl"]),
    "ntk_tutorial_flax": (r"\(20, 5, 10, 10\)[^$]*agree with jacobian_contraction", []),
}

# Models with a size as argument, run small by test_model_examples.py.
MODELS = {"resnet18_linen", "gpt_nnx", "equinox_transformer"}


def test_every_example_is_listed():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == SCRIPTS.keys() | MODELS
    assert set(re.findall(r"`(\w+)\.py`", (EXAMPLES / "README.md").read_text())) == names


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_short_enough_to_be_read_at_once(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 80


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name.startswith("hook_")])
def test_a_training_loop_takes_one_line_of_ours(name):
    lines = (EXAMPLES / f"{name}.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) < 50
    assert sum("ntkdiag.watch(" in line for line in code) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name, tmp_path):
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
        assert (tmp_path / file).stat().st_size > 0
