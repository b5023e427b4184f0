"""From a file to batches: log, its two views, its split. Everything here is immutable once made."""
