"""Search for settings on the validation set."""
