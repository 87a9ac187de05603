"""One file per network: its parameters in numpy, the network in JAX, and the same in torch."""
