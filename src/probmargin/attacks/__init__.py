"""Attacks: search the threat ball around an image for a point where the model does badly."""
