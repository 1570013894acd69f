"""Networks; input normalisation lives inside a model."""
