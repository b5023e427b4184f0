"""The bias monitor: what the service has shown, to whom, and how that changes."""
