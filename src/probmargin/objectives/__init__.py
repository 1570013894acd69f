"""Objectives: per-example losses, split into what the weight multiplies and what it does not; never reduced."""
