"""ntkdiag beside all other ways to compute an empirical NTK, in one run: `python -m benchmarks`."""
