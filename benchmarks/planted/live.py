"""Faults of live logs: views that grow, counts and catalogues that follow them, moments, requests."""

from planted.mutant import of

TESTS = "data/test_live.py data/test_decay.py"

MUTANTS = [
    *of(
        "data/log/live_views.py",
        TESTS,
        ("an event at that very moment is before it", "newest < time, high", "newest <= time, high"),
        ("the first event is the newest one", "min(int(self._firsts[entity]), time)", "time"),
        (
            "nobody hears that a block has moved",
            "self._listeners.tell(entity, place, moved)",
            "self._listeners.tell(entity, place, None)",
        ),
        ("a late event is the last one", "if before[0] > time or", "if before[0] > time + 10**9 or"),
    ),
    *of(
        "data/log/live.py",
        TESTS,
        (
            "now is the time of the last event that came",
            "self._newest = max(self._newest, int(time[added].max()))",
            "self._newest = int(time[added].max())",
        ),
        ("the timeline stands still", "self.timeline.add(0, item, time)", "pass"),
        ("a pair again is new", 'None if self.duplicates == "pair" else time', "time"),
        ("a forgotten user keeps the rows of the log", "self._base = _without(base, keep)", "pass"),
        ("codes follow the ids", "np.lexsort((rank, seen, first))", "np.lexsort((seen, first, rank))"),
    ),
    *of(
        "data/log/decay.py",
        TESTS,
        ("a new event forgets the older ones", "counts[place] += counts", "counts[place] = counts"),
        (
            "counts do not move with their block",
            "counts[start:first] = counts[moved : moved + first - start]",
            "pass",
        ),
    ),
    *of(
        "models/pulse/tags.py",
        TESTS,
        ("tastes stand still", "self.__dict__[view].add(entity, item, time)", "pass"),
    ),
    *of(
        "nn/scoring.py",
        TESTS,
        (
            "an audience that grew is not read again",
            "self._changed.update((item,)",
            "self._changed.update(()",
        ),
    ),
    *of(
        "models/pulse/scoring.py",
        TESTS,
        ("an item is read before its newest event", "newest + 1", "newest"),
        ("events do not count until the next minute", "self._moments.add(time)", "pass"),
        ("a late event changes nothing", "or time < self._begins", "or False"),
    ),
    *of(
        "recommendation/ranker.py",
        TESTS,
        ("the past is read from now", "moment = None if at >= log.now else at", "moment = None"),
    ),
    *of(
        "recommendation/diversity.py",
        TESTS,
        ("likeness costs nothing", "fraction * nearest", "0 * nearest"),
    ),
    *of(
        "recommendation/batch_requests.py",
        "recommendation/test_batch_requests.py",
        ("times are left away", "list(zip(items, times, strict=True)) if times else items", "items"),
        (
            "every block begins at row 0",
            "list(islice(number, batch.num_rows))",
            "list(range(batch.num_rows))",
        ),
    ),
    *of(
        "propensity/impressions.py",
        "propensity/test_exposure.py",
        ("one random item makes a impression random", "random & ~mixed[impression]", "random"),
    ),
]
