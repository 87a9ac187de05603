"""Measurements of one set of parameters on the probes, and of pairs: `measure` and `Pairs`."""
