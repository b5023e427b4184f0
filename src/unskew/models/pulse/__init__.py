"""Pulse: two thousand parameters, no ids; its neighbourhood features and its scoring."""

from unskew.models.pulse import model as model  # which registers it
