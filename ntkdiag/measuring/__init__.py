"""What is known of one set of parameters on the probes, and of two: `measure` and `Pairs`."""
