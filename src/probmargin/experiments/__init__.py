"""Experiments: what is run to compare methods."""
