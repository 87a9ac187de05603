"""Run directories: measurements over training, on disk."""
