"""Faults of what batches know beside the ids: times, features; of clocks, and of the audit of all this."""

from planted.mutant import of

MUTANTS = [
    *of(
        "data/batches/batch.py",
        "data/test_what_batches_know.py data/test_batch.py",
        (
            "a shorter history has the oldest times",
            "history_times_BL=self.history_times_BL[:, items]",
            "history_times_BL=self.history_times_BL[:, : self.history_BL[:, items].shape[1]]",
        ),
        (
            "times of a shorter prefix are ids",
            "for rows in (self.ids_WL, self.times_WL)",
            "for rows in (self.ids_WL, self.ids_WL)",
        ),
        ("times stay padded on the left", "times_BL.gather(1, order_BL)", "times_BL"),
        ("padding has the feature of the first id", ".masked_fill(~there, missing)", ""),
        ("part of a batch is at the times of the whole", "times_B=self.times_B[rows],\n", ""),
        ("a bare history is now", "time_B[:, None] - 1)", "time_B[:, None])"),
    ),
    *of(
        "data/log/views.py",
        "data/test_what_batches_know.py",
        (
            "times are padded on the left",
            "where, inside = self._rows(start, end, right)\n        return np.where(inside, self.times",
            "where, inside = self._rows(start, end, False)\n        return np.where(inside, self.times",
        ),
    ),
    *of(
        "data/batches/samplers.py",
        "data/test_what_batches_know.py data/test_sequences.py",
        ("padding has a time", "np.where(inside, view.times[event], PAD)", "view.times[event]"),
        (
            "a killed step of sequences is trained twice",
            "for plan in plans])\n            self.step += 1\n            yield made\n",
            "for plan in plans])\n            yield made\n            self.step += 1\n",
        ),
        ("a state of another sampler is taken", "if state.get(name) != mine:", "if False:"),
    ),
    *of(
        "data/reading/features.py",
        "data/test_features.py::test_the_earliest_value_stays "
        "data/test_features.py::test_of_values_at_the_same_time_the_smallest_stays_whatever_their_order",
        (
            "the latest value stays",
            "MIN(CASE WHEN {value} IS NOT NULL THEN t END)",
            "MAX(CASE WHEN {value} IS NOT NULL THEN t END)",
        ),
        ("a missing value is a value", "MIN(CASE WHEN {value} IS NOT NULL THEN t END)", "MIN(t)"),
        (
            "the largest of a moment stays",
            "MIN(CASE WHEN t = first_{value}",
            "MAX(CASE WHEN t = first_{value}",
        ),
    ),
    *of(
        "data/log/clock.py",
        "evaluation/test_rolling.py diagnostics/test_inspection_statistics.py",
        ("the first time need not be a date", "if low <= first and last < high", "if low <= last < high"),
        ("a duration is in seconds", "DURATIONS[unit] * (self.ticks or 1)", "DURATIONS[unit]"),
        (
            "a unit that is given is guessed",
            "TICKS[unit] if unit in TICKS else next(fits, None)",
            "next(fits, None)",
        ),
    ),
    *of(
        "data/audit/audit.py",
        "data/test_audit_batches.py data/test_audit.py",
        ("times of sequences are not looked at", "| (time != told))", ")"),
        (
            "times of pairs are not looked at",
            "found == past[len(past) - len(found) :]",
            "[pair[0] for pair in found] == [pair[0] for pair in past[len(past) - len(found) :]]",
        ),
    ),
]
