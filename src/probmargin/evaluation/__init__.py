"""Evaluation: named attacks of pinned meaning, and what they leave of a model's accuracy."""
