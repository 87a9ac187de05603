"""What a margin, the learning rate over the critical one, means for training."""

# Below SLACK the learning rate could grow; from EDGE on training oscillates; beyond OVER, diverges.
SLACK = 0.5
EDGE = 0.8
OVER = 1.1
