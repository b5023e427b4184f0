"""From a split to training batches: contexts, candidates, negative sampling."""
