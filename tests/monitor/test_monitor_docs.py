"""The code of docs/monitor.md runs as it stands, from top to bottom."""

import pathlib
import re

import numpy as np
import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "monitor.md"


@pytest.mark.slow
def test_code_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    names = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    rows = names["rows"]
    assert [row["step"] for row in rows] == [0, 20, 40]
    assert all(row["status"] == 1 and row["margin"] > 0 for row in rows)
    assert rows[-1]["margin_lower"] < rows[-1]["margin_upper"]

    printed = capsys.readouterr().out
    assert "together" in printed  # the plan
    assert "warning step" in printed
    assert len(list(tmp_path.glob("findings/finding-margin-rises-*.jsonl"))) == 1
    assert np.isfinite(names["scalars"]["step_error"])
