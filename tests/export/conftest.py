from trained_run import trained as trained
