"""Weights: how much does an example of this margin count? One file a function, and the normalisers."""
