"""From factors of the Jacobian to numbers of the kernel: every exact way, and its price."""
