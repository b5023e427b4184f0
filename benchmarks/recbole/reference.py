"""One of RecBole's models, trained by RecBole's trainer on the files of export.py, stopped by our validation
rows, asked for scores.

    build/recbole-env/bin/python benchmarks/recbole/reference.py GRU4Rec --data build/recbole/80-10-10 --out
    FOLDER
        [--seed 0] [--batch 256] [--epochs 30] [--patience 3] [--valid PLACES.npy] [--minutes M]
        [--throughput]

Runs in RecBole's environment and knows nothing of our package. What a run leaves in FOLDER:

result.json   rows per CPU-second, epochs, validation NDCG@10 of each of them, and how the run was set up
scores.npy    (test rows, items) float32, in the order of exchange.npz and of our item codes
last.pt       where training is: a run that was killed, or has used its CPU minutes (exit code 3), goes on
              from there

Width 64 and Adam at 1e-3; everything else is RecBole's default for the model. Only DIN's width (10 there) is
thereby changed. A pointwise model (DIN) counts its one sampled negative in the batch: half as many rows.

Validation and test are our protocol `full`: the whole catalogue of items that existed before, without the
user's own past ones, ties sharing their mean rank. RecBole's evaluator knows neither of these exclusions, so
its trainer is told how to validate and otherwise left alone. RecBole cannot read an empty history; here it is
one padding item, which for BERT4Rec is the mask alone.

CPU time is that of whole training epochs, batches and masks included, the first epoch left out where there
are more. With
--throughput, a few batches warm up, then one epoch is timed and nothing is scored. A row is one prefix with
its next item.
"""

import argparse
import itertools
import json
import logging
import os
import random
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from recbole.config import Config  # type: ignore[import-not-found]  # noqa: E402
from recbole.data import create_dataset, data_preparation  # type: ignore[import-not-found]  # noqa: E402
from recbole.data.interaction import Interaction  # type: ignore[import-not-found]  # noqa: E402
from recbole.trainer import Trainer  # type: ignore[import-not-found]  # noqa: E402
from recbole.utils import get_model, init_seed  # type: ignore[import-not-found]  # noqa: E402

NAME = "ml100k"
LENGTH = 50
PAUSED = 3  # exit code of a run that is to be continued
WARM = 3  # batches before the timed epoch
CONTEXTS = 512  # scored together
CANDIDATES = 128  # of one context, where a model scores pairs: what they need stays in the cache

ONE_NEGATIVE = {"train_neg_sample_args": {"distribution": "uniform", "sample_num": 1}}
SOFTMAX: dict[str, Any] = {"train_neg_sample_args": None}
MODELS: dict[str, dict[str, Any]] = {
    "GRU4Rec": SOFTMAX,
    "BERT4Rec": SOFTMAX,
    "SASRec": SOFTMAX,
    "LightSANs": SOFTMAX,
    "STAMP": SOFTMAX,
    "FPMC": ONE_NEGATIVE,
    "DIN": {**ONE_NEGATIVE, "embedding_size": 64},
}


class OutOfTimeError(Exception):
    """The CPU minutes are used up."""


def configured(model: str, data: Path, scratch: Path, **changes: Any) -> Any:
    """RecBole's configuration of a model for files whose histories are written out."""
    settings: dict[str, Any] = {
        "data_path": str(data),
        "checkpoint_dir": str(scratch),
        "benchmark_filename": ["train", "valid", "test"],
        "alias_of_item_id": ["item_id_list"],
        "load_col": {
            "inter": ["user_id", "item_id", "item_id_list"],
            "user": ["user_id"],
            "item": ["item_id"],
        },
        "MAX_ITEM_LIST_LENGTH": LENGTH,
        "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "group_by": "user", "mode": "full"},
        "metrics": ["NDCG"],
        "topk": [10],
        "valid_metric": "NDCG@10",
        "learning_rate": 1e-3,
        "use_gpu": False,
        "show_progress": False,
        "state": "ERROR",
        **MODELS[model],
        **changes,
    }
    argv, sys.argv = sys.argv, sys.argv[:1]  # RecBole reads the command line, too
    try:
        return Config(model=model, dataset=NAME, config_dict=settings)
    finally:
        sys.argv = argv


def built(config: Any) -> tuple[Any, Any, Any]:
    """Data set, training batches, and the model, all from the configuration's seed."""
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_dataset(config)
    batches, _, _ = data_preparation(config, dataset)
    init_seed(config["seed"], config["reproducibility"])
    return dataset, batches, get_model(config["model"])(config, batches._dataset)


class Catalogue:
    """Scores of all items, in our codes, for contexts in our codes."""

    def __init__(self, model: Any, dataset: Any, users: int, items: int) -> None:
        self.model = model
        self.users = torch.from_numpy(dataset.token2id("user_id", [str(code) for code in range(users)]))
        self.items = torch.from_numpy(dataset.token2id("item_id", [str(code) for code in range(items)]))

    @torch.no_grad()
    def scores(self, user: Any, history: Any) -> Any:
        """(contexts, items); histories are padded on the right, with -1. Equal contexts are scored once."""
        self.model.eval()
        distinct, of = np.unique(np.column_stack([user, history]), axis=0, return_inverse=True)
        users, codes = self.users[distinct[:, 0]], torch.from_numpy(distinct[:, 1:])
        real = codes >= 0
        ids = torch.where(real, self.items[codes.clamp(min=0)], 0)
        lengths = real.sum(1).clamp(min=1)
        found = np.empty((len(ids), len(self.items)), np.float32)
        step = 1 if self.model.__class__.__name__ == "DIN" else CONTEXTS
        for at in range(0, len(ids), step):
            part = slice(at, at + step)
            score = self._pairs if step == 1 else self._all
            found[part] = score(users[part], ids[part], lengths[part]).numpy()
        return found[of.reshape(-1)]

    def _all(self, user: Any, ids: Any, length: Any) -> Any:
        context = Interaction({"user_id": user, "item_id_list": ids, "item_length": length})
        return self.model.full_sort_predict(context)[:, self.items]

    def _pairs(self, user: Any, ids: Any, length: Any) -> Any:
        """DIN, which has no scores but those of pairs. Padding has no weight in it, so it may as well be cut
        off; logits, since probabilities would tie."""
        width = int(length[0])
        whole, self.model.attention.mask_mat = self.model.attention.mask_mat, torch.arange(width)[None]
        try:
            found = []
            for at in range(0, len(self.items), CANDIDATES):
                items = self.items[at : at + CANDIDATES]
                size = len(items)
                found.append(
                    self.model(
                        user.expand(size), ids[:, :width].expand(size, width), length.expand(size), items
                    )
                )
            return torch.cat(found)[None]
        finally:
            self.model.attention.mask_mat = whole


def ranks(scores: Any, exchange: Any, part: str, places: Any) -> Any:
    """Our protocol `full`: where the items of these rows are in their catalogues."""
    offsets, past = exchange[f"{part}_past_offsets"], exchange[f"{part}_past"]
    found = np.empty(len(places))
    for at, place in enumerate(places):
        target, row = exchange[f"{part}_item"][place], scores[at].copy()
        mine = row[target]
        row[exchange[f"{part}_born"][place] :] = -np.inf
        row[past[offsets[place] : offsets[place + 1]]] = -np.inf
        row[target] = mine
        found[at] = 1 + (row > mine).sum() + ((row == mine).sum() - 1) / 2
    return found


def ndcg(found: Any) -> float:
    return float(np.where(found <= 10, 1 / np.log2(found + 1), 0.0).mean())


class Reference(Trainer):  # type: ignore[misc]
    """RecBole's trainer with our validation, a clock around its epochs, and a place to stop at."""

    def __init__(
        self,
        config: Any,
        model: Any,
        out: Path,
        validate: Any,
        minutes: float | None,
        settings: dict[str, Any],
    ) -> None:
        super().__init__(config, model)
        self.out, self.validate, self.minutes, self.settings = out, validate, minutes, settings
        self.keeping = True
        self.records: dict[str, Any] = {"epoch_cpu_s": [], "valid": [], "cpu_s": 0.0}

    def _train_epoch(
        self, train_data: Any, epoch_idx: int, loss_func: Any = None, show_progress: bool = False
    ) -> Any:
        if self.keeping:
            self._keep(train_data, epoch_idx)
        if self.minutes is not None and time.process_time() > 60 * self.minutes:
            raise OutOfTimeError
        started = time.process_time()
        loss = super()._train_epoch(train_data, epoch_idx, loss_func, show_progress)
        self.records["epoch_cpu_s"].append(round(time.process_time() - started, 3))
        return loss

    def _valid_epoch(self, valid_data: Any, show_progress: bool = False) -> tuple[float, dict[str, float]]:
        score = self.validate()
        self.records["valid"].append(round(score, 6))
        print(
            f"epoch {len(self.records['valid'])}: {self.records['epoch_cpu_s'][-1]} CPU-s, valid ndcg@10 "
            f"{score:.4f}",
            flush=True,
        )
        return score, {"ndcg@10": score}

    def _save_checkpoint(self, epoch: int, verbose: bool = True, **ignored: Any) -> None:
        """The weights alone: RecBole would store its data set with DIN's."""
        torch.save(self.model.state_dict(), self.out / "best.pt")

    def _keep(self, batches: Any, epoch: int) -> None:
        """All that the next epoch depends on, so that a continued run is the same run."""
        used = self.records["cpu_s"] + time.process_time()
        state = {
            "settings": self.settings,
            "epoch": epoch,
            "stopping": (self.cur_step, self.best_valid_score),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "records": {**self.records, "cpu_s": used},
            "random": (
                torch.get_rng_state(),
                np.random.get_state(),  # noqa: NPY002
                random.getstate(),
                batches.generator.get_state(),
            ),
        }
        torch.save(state, self.out / "last.part")
        (self.out / "last.part").rename(self.out / "last.pt")

    def go_on(self, batches: Any) -> None:
        if not (self.out / "last.pt").is_file():
            return
        state = torch.load(self.out / "last.pt", weights_only=False)
        if state["settings"] != self.settings:
            sys.exit(f"{self.out}: holds a run with other settings: {state['settings']}")
        self.start_epoch, self.records = state["epoch"], state["records"]
        self.cur_step, self.best_valid_score = state["stopping"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"][0])
        np.random.set_state(state["random"][1])  # noqa: NPY002
        random.setstate(state["random"][2])
        batches.generator.set_state(state["random"][3])


def main(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    data, out = asked.data.resolve(), asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    valid = np.load(asked.valid.resolve()) if asked.valid else None
    os.chdir(out)  # RecBole writes its logs to wherever it is
    exchange = dict(np.load(data / "exchange.npz"))
    # RecBole stops after more than `stopping_step` epochs without a better one, we after as many as our
    # patience.
    config = configured(
        asked.model,
        data,
        out,
        seed=asked.seed,
        train_batch_size=asked.batch,
        epochs=asked.epochs,
        stopping_step=asked.patience - 1,
    )
    dataset, batches, model = built(config)
    catalogue = Catalogue(model, dataset, int(exchange["users"]), int(exchange["items"]))
    places = np.arange(len(exchange["valid_row"])) if valid is None else valid

    def validate() -> float:
        scores = catalogue.scores(exchange["valid_user"][places], exchange["valid_history"][places])
        return ndcg(ranks(scores, exchange, "valid", places))

    settings = {
        "model": asked.model,
        "seed": asked.seed,
        "batch": asked.batch,
        "epochs": asked.epochs,
        "patience": asked.patience,
        "valid_examples": len(places),
    }
    trainer = Reference(config, model, out, validate, asked.minutes, settings)
    size = len(batches._dataset)
    facts = {**settings, "rows": size, "parameters": sum(p.numel() for p in model.parameters())}
    if asked.throughput:
        trainer.keeping = False
        trainer._train_epoch(list(itertools.islice(batches, WARM)), 0)
        trainer._train_epoch(batches, 1)
        write(
            out / "throughput.json",
            {**facts, "rows_per_cpu_s": round(size / trainer.records["epoch_cpu_s"][-1], 1)},
        )
        return
    trainer.go_on(batches)
    try:
        trainer.fit(batches, valid_data=True, verbose=False)
    except OutOfTimeError:
        print(f"paused after {len(trainer.records['valid'])} epochs", flush=True)
        sys.exit(PAUSED)
    model.load_state_dict(torch.load(out / "best.pt"))
    trained = trainer.records["cpu_s"] + time.process_time()
    scores = catalogue.scores(exchange["test_user"], exchange["test_history"])
    np.save(out / "scores.npy", scores)
    epochs = trainer.records["epoch_cpu_s"]
    timed = epochs[1:] or epochs
    facts |= {
        "rows_per_cpu_s": round(size * len(timed) / sum(timed), 1),
        "epochs_run": len(epochs),
        "best_epoch": int(np.argmax(trainer.records["valid"])) + 1,
        "capped": len(epochs) == asked.epochs,
        "valid": trainer.records["valid"],
        "cpu_s": round(trained),
        "test_cpu_s": round(trainer.records["cpu_s"] + time.process_time() - trained),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "test_ndcg@10": ndcg(ranks(scores, exchange, "test", np.arange(len(scores)))),
    }
    write(out / "result.json", facts)
    (out / "last.pt").unlink(missing_ok=True)


def write(path: Path, facts: dict[str, Any]) -> None:
    path.with_suffix(".part").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=list(MODELS))
    parser.add_argument("--data", type=Path, required=True, help="what export.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=256, help="rows in a batch")
    parser.add_argument("--epochs", type=int, default=30, help="at most")
    parser.add_argument(
        "--patience",
        type=int,
        default=3,
        help="epochs without a better validation metric before training stops",
    )
    parser.add_argument(
        "--valid",
        type=Path,
        help="which of the validation rows are ranked after each epoch, as an .npy; default all",
    )
    parser.add_argument("--minutes", type=float, help="CPU minutes after which to pause; default none")
    parser.add_argument("--throughput", action="store_true", help="time one epoch, and nothing else")
    main(parser.parse_args())
