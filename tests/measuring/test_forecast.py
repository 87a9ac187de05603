"""What `track` and `compare` say before long work."""

import numpy as np
import pytest

import ntkdiag
from ntkdiag.comparison import measurer

TRAIN = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32), np.arange(6) % 2
RUN = {step: {"w": np.full((3, 2), step + 1, np.float32)} for step in (0, 1)}


def model(params, x):
    return x @ params["w"]


@pytest.mark.slow
def test_long_work_says_so_in_one_line(capsys, monkeypatch, tmp_path):
    for seconds, progress in ((0.0, None), (0.0, False), (10.0, None)):
        monkeypatch.setattr(measurer, "WORTH_SAYING", seconds)
        options = {"model": model, "train": TRAIN, "progress": progress}
        said = progress is None and not seconds
        ntkdiag.compare(RUN[0], RUN[1], **options)
        line = "comparing two checkpoints: about 0.0 min for the kernels alone\n"
        assert capsys.readouterr() == ("", line if said else "")
        out = tmp_path / f"{seconds} {progress}"
        for is_there in (False, True):  # what is stored takes nothing
            ntkdiag.track(RUN, out=out, **options)
            line = "tracking 2 checkpoints: about 0.0 min for the kernels alone\n"
            assert capsys.readouterr().err == (line if said and not is_there else "")
