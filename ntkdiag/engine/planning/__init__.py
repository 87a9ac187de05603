"""What will be computed, how, and what it costs: decided from shapes alone."""
