"""A function at fixed shapes: traced once, compiled once for each way of contracting it."""
