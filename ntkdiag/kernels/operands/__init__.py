"""Reading kernels, labels and numbers at the public edge: what the layers above check before they compute."""
