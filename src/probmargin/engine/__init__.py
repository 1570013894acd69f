"""How things run: devices, precision, files, checkpoints. Knows no method."""
