"""The log in memory: its users, items and events, their views in time, its split."""
