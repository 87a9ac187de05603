"""ntkdiag beside every other way to compute an empirical NTK, measured in one run: `python -m benchmarks`."""
