"""Layers, losses and scoring that several models share."""
