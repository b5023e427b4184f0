"""Metrics, evaluation on a temporal split, significance tests, comparison, rolling evaluation."""
