"""Pulse: two thousand parameters, no ids; its neighbourhood features and its scoring."""

from unskew.models.pulse import by_hand as by_hand  # which registers it
from unskew.models.pulse import model as model  # which registers it
