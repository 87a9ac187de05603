"""Run directories: what was measured over training, on disk, whatever it is a measurement of."""
