"""One line that is no JSON row (deep nesting, a number of 5,000 digits) must be left out, as a torn one is; it makes the run unreadable."""

import os
import pathlib
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
import ntkdiag

bad = []
for name, line in (
    ("deep nesting", "[" * 100_000),
    ("5,000 digits", '{"step": 2, "trace": ' + "9" * 5_000 + "}"),
):
    root = pathlib.Path(tempfile.mkdtemp())
    (root / "watch.jsonl").write_text(
        '{"record": {"call": "watch"}}\n{"step": 1, "trace": 1.0}\n' + line + "\n"
    )
    try:
        rows = ntkdiag.open_run(root).rows()
        if rows[0]["step"] != 1:
            bad.append(f"{name}: {rows}")
    except ntkdiag.errors.NtkdiagError:
        pass
    except Exception as error:
        bad.append(f"{name}: {type(error).__name__}: {str(error)[:60]}")
print("ok" if not bad else f"FAILS: {'; '.join(bad)}")
sys.exit(bool(bad))
