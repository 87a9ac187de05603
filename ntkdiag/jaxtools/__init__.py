"""JAX below its public surface, and tools that other folders share."""
