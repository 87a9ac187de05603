"""What numbers say: every threshold and every judgement, for comparisons and runs alike."""
