"""Faults of runs that are stopped, resumed and extended."""

from planted.mutant import of

MUTANTS = [
    *of(
        "training/run.py",
        "training/test_run.py::test_runs_are_not_overwritten",
        (
            "other settings of training are resumed",
            'but=("data", "hash")):',
            'but=("data", "hash", "training")):',
        ),
        (
            "another learning rate is resumed",
            '("epochs", "patience")',
            '("epochs", "patience", "learning_rate")',
        ),
        (
            "a finished run has the weights of a new network",
            "    trainer.model.load_state_dict(trainer.best[trainer.select_by])\n",
            "",
        ),
    ),
    *of(
        "training/run.py",
        "evaluation/test_select_by.py",
        ("patience cannot be added", '("epochs", "patience")', '("epochs",)'),
    ),
    *of(
        "training/run.py",
        "training/test_resume.py::test_rounds_are_added_to_a_finished_run",
        (
            "a finished run gets no more epochs",
            "return self.has_card and read_card(self.folder).training == training",
            "return self.has_card",
        ),
    ),
    *of(
        "training/run.py",
        "training/test_resume.py::test_a_stopped_run_is_used_at_its_best_round_so_far",
        (
            "a stopped run has its last weights",
            'below(f"best/{name}", tensors) for',
            'below("model", tensors) for',
        ),
    ),
    *of(
        "training/run.py",
        "training/test_resume.py::test_a_killed_extension_goes_on",
        (
            "new limits are not noted",
            'made.lock()\n            made._write_json("config.json", config)\n            return',
            "made.lock()\n            return",
        ),
    ),
    *of(
        "training/trainer.py",
        "training/test_resume.py::test_rounds_are_added_to_a_finished_run",
        (
            "epochs of all stages are counted",
            "done = sum(record.stage == stage.name for record in self.records)",
            "done = len(self.records)",
        ),
        (
            "a reopened run is finished",
            "at.stage, at.round, at.finished = len(self.stages) - 1, done, False",
            "at.stage, at.round = len(self.stages) - 1, done",
        ),
    ),
    *of(
        "training/trainer.py",
        "core/test_interrupts.py",
        ("a step that is half done is saved", "if not self.interrupts.in_step:", "if True:"),
        ("an interrupt saves nothing", "if not self.interrupts.in_step:", "if False:"),
    ),
    *of(
        "training/trainer.py",
        "evaluation/test_select_by.py",
        ("patience is an epoch longer", ">= self.settings.patience", "> self.settings.patience"),
    ),
    *of(
        "training/trainer.py",
        "training/test_tracking.py",
        ("a resumed run does not repeat its records", "self.tell(self.records)\n        with", "with"),
    ),
    *of(
        "core/interrupts.py",
        "core/test_interrupts.py",
        ("a step is stopped in the middle", "if self.in_step and not self._asked:", "if False:"),
        ("a second interrupt waits, too", "if self.in_step and not self._asked:", "if self.in_step:"),
        ("handlers stay", "signal.signal(each, handler)", "pass"),
        (
            "a step that fails is done",
            "        yield\n        self.in_step = False\n",
            "        try:\n            yield\n        finally:\n            self.in_step = False\n",
        ),
        (
            "a step that was asked to stop goes on",
            "        if self._asked:\n            raise KeyboardInterrupt",
            "        return",
        ),
        ("SIGTERM does not wait", "(signal.SIGINT, signal.SIGTERM)", "(signal.SIGINT,)"),
    ),
]
