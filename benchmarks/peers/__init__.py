"""The ways to compute the kernel: one file each, and one table of names."""
