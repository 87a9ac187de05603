"""Whoever adds a number and a finding edits a few files of the package: both are then wherever results are read."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import ntkdiag

# File -> what stands there, and the line that comes before it.
NUMBER = {
    "quantities.py": (
        '    "norm": Quantity(',
        '    "decades": Quantity(OF_KERNEL, "decades", "Logarithm of the trace.", "log tr"),\n',
    ),
    "measuring/measured.py": (
        '            "norm": self.norm,\n',
        '            "decades": float(np.log10(self.trace)),\n',
    ),
}
FINDING = {
    "report/run_findings.py": (
        "        *_regime(subject),\n",
        '        *decades_findings(subject.series("decades"), int(subject.steps[-1])),\n',
    ),
}
JUDGEMENT = '''"""Whether a kernel has decades."""

from ntkdiag.judging.finding import Finding


def decades_findings(decades, step):
    if decades is None or not decades[-1] > 0:
        return []
    return [
        Finding(
            id="many-decades",
            severity="warning",
            quantities=("decades",),
            sentence="The kernel is large.",
            value=float(decades[-1]),
            threshold=0.0,
            step=step,
            trust="Of checkpoints.",
            do="Scale the outputs.",
        )
    ]
'''
PROGRAM = """
import json
import jax.numpy as jnp
import numpy as np
import ntkdiag

rng = np.random.default_rng(0)
x, y = rng.normal(size=(8, 3)).astype(np.float32), np.arange(8) % 2
run = {t: {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)} for t in range(2)}
f = lambda params, x: 3 * jnp.tanh(x @ params["w"])
tracked = ntkdiag.track(run, model=f, train=(x, y), loss="cross_entropy", out="run", progress=False)
tracked.save("page.html")
compared = ntkdiag.compare(run[0], run[1], model=f, train=(x, y), loss="cross_entropy", progress=False)
compared.save("comparison.html")
print(json.dumps({
    "package": ntkdiag.__file__,
    "trace": tracked.rows[-1]["trace"],
    "decades": tracked.rows[-1]["decades"],
    "words": tracked.to_xarray()["decades"].attrs["long_name"],
    "findings": [finding.id for finding in tracked.findings],
    "compared": compared.text(everything=True),
}))
"""


@pytest.fixture
def with_a_number_more(tmp_path):
    """A folder with a copy of the package that has one number and one finding more."""
    package = tmp_path / "ntkdiag"
    shutil.copytree(pathlib.Path(ntkdiag.__file__).parent, package)
    for name, (place, line) in (NUMBER | FINDING).items():
        text = (package / name).read_text()
        assert text.count(place) == 1, name
        (package / name).write_text(text.replace(place, line + place))
    judging = package / "judging" / "decades_finding.py"
    judging.write_text(JUDGEMENT)
    findings = package / "report" / "run_findings.py"
    imported = "from ntkdiag.judging.decades_finding import decades_findings\n"
    first = "from ntkdiag.judging.finding import"
    findings.write_text(findings.read_text().replace(first, imported + first))
    return tmp_path


def ran(folder, *arguments):
    """The exit status of Python in that folder, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.slow
def test_a_number_and_a_finding_are_wherever_results_are_read(with_a_number_more):
    folder = with_a_number_more
    _, printed = ran(folder, "-c", PROGRAM)
    seen = json.loads(printed.splitlines()[-1])
    assert pathlib.Path(seen["package"]).is_relative_to(folder)
    assert 10 ** seen["decades"] == pytest.approx(seen["trace"])
    assert seen["words"] == "decades"
    assert "many-decades" in seen["findings"]
    assert "decades" in seen["compared"]
    assert "decades" in (folder / "comparison.html").read_text()
    assert "many-decades" in (folder / "page.html").read_text()
    _, terminal = ran(folder, "-m", "ntkdiag", "show", "run")
    assert "decades" in terminal
    status, checked = ran(folder, "-m", "ntkdiag", "check", "run")
    assert status == 1
    assert "many-decades" in checked
