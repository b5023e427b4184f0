"""From scores to lists: the ranker, approximate search, diversity, files of requests."""
