"""What a log is like, in figures and in plain words."""
