"""Which numbers warn before the loss jumps: 200 small runs, thresholds from one half of them."""
