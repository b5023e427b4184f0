"""Faults of what people do with a model: recommend, follow a newer log, refit, export."""

from planted.mutant import of

MUTANTS = [
    *of(
        "recommendation/ranker.py",
        "api/test_zero_shot.py recommendation/test_ranker.py recommendation/test_ranker_keeps.py",
        (
            "what nobody had yet is recommended",
            "np.append(first >= at,",
            "np.append(first >= at + 10**9,",
        ),
        ("a candidate need not exist yet", "hidden |= ~np.isin(", "hidden = ~np.isin("),
        (
            "an unknown exclusion hides the last item",
            "hidden[named[named != PAD]] = True",
            "hidden[named] = True",
        ),
        (
            "only what the model reads was seen",
            """        if not wanted.include_seen:
            row, place = past.flat(*past.before(owner, at))""",
            """        if not wanted.include_seen:
            row, place = past.flat(*past.before(owner, at, self.model.history))""",
        ),
        (
            "a newer log has the catalogue of the older",
            "before is not None and before[0] is log and before[1] == moment",
            "before is not None and before[1] == moment",
        ),
        (
            "a newer log is read at the end of the older",
            "first = log.now if moment is None else moment",
            "first = before[0].now if before else log.now",
        ),
        ("a bare history is not past", "[at - 1 if time is None", "[at if time is None"),
        (
            "a stranger is padding",
            "np.where(codes == PAD, len(log.users), codes)",
            "codes",
        ),
        (
            "an unknown item of a history is the last one",
            "order = order[codes[order] != PAD]",
            "order = order[codes[order] >= PAD]",
        ),
    ),
    *of(
        "nn/scoring.py",
        "nn/test_scoring.py recommendation/test_ranker_keeps.py",
        (
            "new items have no vector",
            "same = len(log.items) == self.vectors.shape[1]",
            "same = True",
        ),
        ("audiences never change", "same[:shared] = (now == then).all(1)", "same[:shared] = True"),
        (
            "an audience with the same newest user is the same",
            "same[:shared] = (now == then).all(1)",
            "same[:shared] = (now == then)[:, -1]",
        ),
    ),
    *of(
        "api/model.py",
        "recommendation/test_ranker_keeps.py api/test_saved_model.py",
        (
            "other items are the same ids",
            "(known.items.ids, log.items.ids)",
            "(known.users.ids, known.users.ids)",
        ),
        (
            "other users are the same ids",
            "sides = (known.users.ids, log.users.ids)",
            "sides = (known.users.ids, known.users.ids)",
        ),
        (
            "the next call is of the newer log, too",
            "self._ranker.follow(known if log is None else log)",
            "self._ranker.follow(self._ranker.log if log is None else log)",
        ),
        (
            "lists are of the weights before",
            "self._select_by, self._ranker = criterion, None",
            "self._select_by = criterion",
        ),
    ),
    *of(
        "api/model.py",
        "evaluation/test_select_by.py",
        ("a refit has all epochs", "epochs=max(epochs, 1), select_by=by", "select_by=by"),
        ("a refit has the worst epoch", "max(scores, key=", "min(scores, key="),
        (
            "a refit goes by clicks",
            'record["valid"][self._select_by]["ndcg@10"]',
            'record["valid"]["ordinary"]["ndcg@10"]',
        ),
        (
            "an evaluation leaves its weights behind",
            "network.load_state_dict(self._weights[self._select_by])",
            "pass",
        ),
    ),
    *of(
        "api/model.py",
        "training/test_resume.py::test_a_refit_is_of_the_same_task",
        ("a refit guesses about repeats", '"keep" if self.repeats else "hide"', '"auto"'),
    ),
    *of(
        "api/model.py",
        "training/test_resume.py::test_a_refit_knows_whom_its_run_knew",
        ("a refit knows everybody", ", min_count=self.min_count)", ")"),
    ),
    *of(
        "api/model.py",
        "training/test_resume.py::test_a_refit_takes_over_settings_that_no_gradient_learns",
        (
            "a refit forgets what was chosen",
            "on_record, show_progress, chosen)\n\n",
            "on_record, show_progress)\n\n",
        ),
    ),
    *of(
        "training/run_log.py",
        "training/test_run_log.py",
        ("nobody is rare in a loaded run", "if ids.rare is not None:", "if False:"),
        ("a loaded run is at its last event", 'end=int(memory["now"][0])', 'end=int(memory["now"][0]) - 1'),
    ),
    *of(
        "propensity/export.py",
        "propensity/test_export.py",
        (
            "a border belongs to the part before",
            'np.searchsorted(borders, time, "right")',
            "np.searchsorted(borders, time)",
        ),
        (
            "the estimator reads more than it was trained on",
            "batch_of_rows(log, some, *past)",
            "batch_of_rows(log, some)",
        ),
        (
            "the views are exchanged",
            'ESTIMATES = ("item_view", "user_view"',
            'ESTIMATES = ("user_view", "item_view"',
        ),
    ),
    *of(
        "core/atomic_files.py",
        "recommendation/test_ranker_keeps.py propensity/test_export.py",
        (
            "the first block is not written",
            "for frame in chain([first], frames):\n                writer",
            "for frame in frames:\n                writer",
        ),
        (
            "the first block of lines is not written",
            "for frame in chain([first], frames):\n                    lines",
            "for frame in frames:\n                    lines",
        ),
        ("what is half written stays", "path.unlink(missing_ok=True)", "pass"),
    ),
]
