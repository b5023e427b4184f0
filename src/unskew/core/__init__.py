"""What every package uses, and what is not about recommendation: errors, settings, progress, statistics."""
