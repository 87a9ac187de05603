"""What is used of JAX below its public surface, and tools that other rooms share."""
