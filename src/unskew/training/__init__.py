"""The training loop, the run folder, and how a trained model is extended to new users and items."""
