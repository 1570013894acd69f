"""A run's folder: open it, read its recipe, rebuild its model."""
