"""One file per network: its parameters in numpy, the network in JAX, and the same network in torch."""
