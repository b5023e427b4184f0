"""ml-100k as we prepare and split it, written down for RecBole: its atomic files, and everything else as
arrays.

    python benchmarks/recbole/export.py [--fractions 80-10-10]

Needs the environment that setup.sh makes, for the file ml-100k.inter that the package brings along. A rating
of at least 4 is a positive, and only positives enter sequences. All goes to build/recbole/SHARES:

ml100k/ml100k.train.inter    one row per training positive with a past: user, item, the newest 50 items
                             strictly before, oldest first ml100k/ml100k.valid.inter    the positives that we
                             rank, as `held_out` lists them; likewise test ml100k/ml100k.user .item      every
                             id of the log, so that ids which training never saw have a place in RecBole's
                             vocabulary exchange.npz                  the same in our codes, and what our full
                             ranking leaves out

A token is our code, written as a number. RecBole draws negatives from, and normalises over, its whole
vocabulary, so ids that training never saw are pushed down as negatives there; they are never a training
target.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from numpy.typing import NDArray

import unskew
from unskew.core.errors import BadInput
from unskew.data.log.folder import is_prepared
from unskew.data.log.held_out import held_out
from unskew.data.log.log import Log
from unskew.data.log.split import Part, Split
from unskew.data.log.views import HISTORY, PAD, Ints

BUILD = Path(__file__).parents[2] / "build"
ENVIRONMENT, FOLDER = BUILD / "recbole-env", BUILD / "recbole"
# A folder and the beginning of its files' names; under ml-100k RecBole would read the example that it brings
# along
NAME = "ml100k"


def source() -> Path:
    found = sorted(
        ENVIRONMENT.glob("lib/python*/site-packages/recbole/dataset_example/ml-100k/ml-100k.inter")
    )
    if not found:
        raise BadInput(f"{ENVIRONMENT}: no RecBole there; make it with benchmarks/recbole/setup.sh")
    return found[0]


def prepared() -> Log:
    folder = FOLDER / "log"
    return Log.open(folder) if is_prepared(folder) else unskew.prepare(source(), folder, positive=4)


def split_by(fractions: str) -> Split:
    train, valid, test = (float(fraction) for fraction in fractions.split("-"))
    return unskew.split(prepared(), fractions=(train, valid, test))


def training_rows(split: Split) -> Ints:
    """Positives of the training set with something strictly before them, in time."""
    log = split.log
    rows = np.flatnonzero(split.mask("train") & (log.label == 1))
    start, end = log.histories.before(log.user[rows], log.time[rows])
    rows = rows[end > start]
    return rows[np.lexsort((rows, log.time[rows]))]


def exported(fractions: str) -> tuple[Split, Path]:
    """The split, and the folder in which it is written down for RecBole; written now if it was not."""
    split, folder = split_by(fractions), FOLDER / fractions
    if not (folder / "exchange.npz").is_file():
        write(split, folder)
    return split, folder


def write(split: Split, folder: Path) -> None:
    log, atomic = split.log, folder / NAME
    atomic.mkdir(parents=True, exist_ok=True)
    parts: dict[Part, Ints] = {"train": training_rows(split)}
    parts |= {"valid": held_out(split, "valid").rows, "test": held_out(split, "test").rows}
    sizes = {
        "users": len(log.users),
        "items": len(log.items),
        "known_users": split.known_users,
        "known_items": split.known_items,
    }
    arrays: dict[str, NDArray[np.integer]] = {name: np.array(size) for name, size in sizes.items()}
    for part, rows in parts.items():
        columns = columns_of(log, rows)
        _write_inter(atomic / f"{NAME}.{part}.inter", columns)
        arrays |= {f"{part}_{name}": column for name, column in columns.items()}
    for name, size in (("user", len(log.users)), ("item", len(log.items))):
        lines = "".join(f"{code}\n" for code in range(size))
        (atomic / f"{NAME}.{name}").write_text(f"{name}_id:token\n{lines}", encoding="utf-8")
    # Written last: an export with an exchange.npz is whole.
    with (folder / "exchange.part").open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    (folder / "exchange.part").rename(folder / "exchange.npz")


def columns_of(log: Log, rows: Ints) -> dict[str, NDArray[np.integer]]:
    """The contexts of some rows, histories padded on the right; `born` items exist by then, and `past` ones
    are the user's own."""
    user, time = log.user[rows].astype(np.int64), np.asarray(log.time[rows])
    start, end = log.histories.before(user, time, HISTORY)
    places = start[:, None] + np.arange(HISTORY)
    history = np.where(
        places < end[:, None], log.histories.ids[np.minimum(places, len(log.histories.ids) - 1)], PAD
    )
    start, end = log.histories.before(user, time)
    _, past = log.histories.flat(start, end)
    return {
        "row": rows,
        "user": user,
        "item": log.item[rows].astype(np.int64),
        "time": time,
        "history": history.astype(np.int32),
        "born": log.audiences.existing(time),
        "past": log.histories.ids[past],
        "past_offsets": np.concatenate([[0], np.cumsum(end - start)]),
    }


def _write_inter(path: Path, columns: dict[str, NDArray[np.integer]]) -> None:
    lines = ["user_id:token\titem_id:token\titem_id_list:token_seq\ttimestamp:float"]
    for user, item, history, time in zip(
        *(columns[name] for name in ("user", "item", "history", "time")), strict=True
    ):
        lines.append(f"{user}\t{item}\t{' '.join(map(str, history[history != PAD]))}\t{time}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Export:
    fractions: str = "80-10-10"
    """Fractions of the rows, in time: train, valid, test."""

    def run(self) -> None:
        split = split_by(self.fractions)
        write(split, FOLDER / self.fractions)
        for row in split.summary():
            print(row)
        print(f"{len(training_rows(split)):,} training rows with a past, in {FOLDER / self.fractions}")


if __name__ == "__main__":
    tyro.cli(Export, description=__doc__).run()
