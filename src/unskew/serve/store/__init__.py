"""The durable store of events and recommendations, in SQLite or PostgreSQL."""
