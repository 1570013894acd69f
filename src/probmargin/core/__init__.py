"""The package's vocabulary: what every other folder may use."""
