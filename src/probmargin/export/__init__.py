"""Trained models into files for others, and others' weights into our models."""
