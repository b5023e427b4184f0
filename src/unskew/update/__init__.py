"""Daily updates: new events are merged, the model is extended, checked and published."""
