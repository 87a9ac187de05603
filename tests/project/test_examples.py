"""Every example runs as a script, from an empty folder, and says what it promises."""

import importlib.util
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
    "linear_baseline": (r"linearized at step 30: .*%", ["linear_baseline.png"]),
    "silent_alignment": (r"alignment 0\.55\d, in theory 0\.555", ["silent_alignment.png"]),
    "wide_networks": (r"gap +against α: slope -(0\.9|1\.0)", ["wide_networks.png"]),
    "which_examples": (r"of the twenty to look at first 1\d have a wrong label", []),
    "hook_equinox": (MEASURED, []),
    "hook_flax_linen": (MEASURED, []),
    "hook_nnx": (MEASURED, []),
    "hook_scan": (MEASURED, []),
    "optimizer_alone": (r"warning step 120 not-finite", ["run/watch.jsonl"]),
    "ntk_tutorial_flax": (r"\(20, 5, 10, 10\)[^$]*agree with jacobian_contraction", []),
}

# Models with a size as argument, and what is printed of a small one beside the self-check.
MODELS = {
    "resnet18_linen": ((2, 8), "train 0.000 from the last"),
    "gpt_nnx": ((16, 1, 16), "last token: Kernel(float32[6, 6]"),
    "equinox_transformer": ((16, 2, 16), "Spectrum(6 eigenvalues"),
}


def test_every_example_is_listed():
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == SCRIPTS.keys() | MODELS.keys()
    assert set(re.findall(r"`(\w+)\.py`", (EXAMPLES / "README.md").read_text())) == names


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


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_are_right_by_the_selfcheck(name, capsys):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments, printed = MODELS[name]
    module.main(*arguments)
    out = capsys.readouterr().out
    assert ": nothing is wrong  (" in out, out
    assert printed in out, out
