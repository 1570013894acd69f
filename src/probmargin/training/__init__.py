"""Training: one step and one loop for every method."""
