"""What the update that was made tells about the optimizer that made it."""
