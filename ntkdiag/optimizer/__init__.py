"""How an optimizer responds to a gradient."""
