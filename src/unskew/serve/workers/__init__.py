"""Processes that score in parallel for one service."""
