"""The way in: what a kernel function is handed, checked and made ready."""
