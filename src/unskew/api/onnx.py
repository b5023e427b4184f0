"""A trained model as an ONNX file, for programs that have neither Python nor torch (extra `onnx`).

    unskew.api.onnx.export(unskew.load("run"), "films.onnx")

The file reads histories of item codes and gives the scores of all items and the best of them. It holds what a
model does with a history, and nothing of the log: what a user has seen is not left out, and no other user
recommends (`pulse-zero`) where the model has nothing to say. Beside it stands `films.items.parquet`, the item
id of every code.

    history  (batch, length)   int64: item codes, oldest first, in rows of any length. PAD (-1) is skipped
                               wherever it stands; codes that no item has count as unknown items. Of more
                               items than the model reads, the newest count.
    k        ()                int64: how many of the best items are wanted
    scores   (batch, items)    float32: the score of every item, by its code
    best     (batch, k)        int64: the codes of the best items, best first
    best_scores (batch, k)     float32: their scores
"""

import copy
import io
import os
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.api.model import Model
from unskew.core.atomic_files import new_file
from unskew.core.errors import BadInput, UnskewError
from unskew.data.batches.batch import bare_contexts
from unskew.data.log.views import PAD
from unskew.models.base import MODELS, DotProduct, Recommender
from unskew.nn.layers import Embeddings, is_real

OPSET = 17
LARGEST = 2_000_000_000  # bytes: a file of this format cannot be larger
TOLERANCE = 1e-3  # by how much the scores of the file may differ from the model's, beside their size
CHECKED = 8  # histories that they are compared on


@dataclass(frozen=True)
class Exported:
    """What was written.

    difference: the largest difference between a score of the file, in ONNX Runtime, and the model's.
    """

    file: str
    items_file: str
    model: str
    items: int
    history: int
    difference: float


def export(model: Model, file: str | os.PathLike[str]) -> Exported:
    """Write a model as an ONNX file, and the ids of its items beside it; both whole or not at all. The file
    is run on some histories first, and compared with the model."""
    target = Path(file)
    if target.suffix != ".onnx":
        raise BadInput(f"{target}: expected a name that ends with .onnx")
    onnx, runtime = _packages()
    network, log, folder = model.network, model.known_log, model.trained.folder
    dotted = _exported(network)
    beside = target.with_suffix(".items.parquet")
    with torch.no_grad(), new_file(target) as path, new_file(beside) as ids_path:
        scoring = Scoring(dotted, len(log.items)).eval()
        size = sum(tensor.nbytes for tensor in scoring.state_dict().values())
        if size > LARGEST:
            raise BadInput(
                f"{target}: the tables of this model have {size:,} bytes, too many for this format"
            )
        document = onnx.load_from_string(_trace(scoring))
        about = {
            "model": model.name,
            "run": "" if folder is None else folder.name,
            "history": dotted.history,
            "items": len(log.items),
            "pad": PAD,
            "unskew": version("unskew"),
        }
        onnx.helper.set_model_props(document, {name: str(value) for name, value in about.items()})
        onnx.checker.check_model(document)
        content = document.SerializeToString()
        difference = _largest_difference(
            runtime.InferenceSession(content, _quiet(runtime)), dotted, len(log.items)
        )
        if not difference <= TOLERANCE:
            raise UnskewError(f"{target}: its scores differ from the model's by {difference:.2g}")
        pq.write_table(pa.table({"code": np.arange(len(log.items)), "item_id": log.items.ids}), ids_path)
        path.write_bytes(content)
    return Exported(str(target), str(beside), model.name, len(log.items), dotted.history, difference)


class Lookup(nn.Module):
    """An embedding table as one table, with a row for unknown ids and one for padding behind the others."""

    rows: Tensor

    def __init__(self, table: Embeddings) -> None:
        super().__init__()
        self.known = table.known
        own, unknown = table.table(), table.unknown_vector()[None]
        self.register_buffer("rows", torch.cat([own, unknown, torch.zeros_like(unknown)]))

    def forward(self, ids: Tensor, masked: None = None) -> Tensor:
        """The embeddings of ids of any shape, (..., D)."""
        places = torch.where(is_real(ids), ids.clamp(max=self.known), self.known + 1)
        return functional.embedding(places, self.rows)


class Scoring(nn.Module):
    """What the file does. Every history becomes as long as the longest that the model reads, so that nothing
    in it depends on the length but the first step."""

    vectors: Tensor

    def __init__(self, network: DotProduct, items: int) -> None:
        super().__init__()
        self.length = network.history
        self.register_buffer("vectors", network.vectors(torch.arange(items)).T.contiguous())
        self.network = copy.deepcopy(network)
        for module in list(self.network.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, Embeddings):
                    setattr(module, name, Lookup(child))

    def forward(self, history: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The scores of all items, the codes of the best, and their scores."""
        state_BD = self.network.read_histories(self._newest(history))
        scores = state_BD @ self.vectors
        best = scores.topk(cast(int, k))
        return scores, best.indices, best.values

    def _newest(self, history: Tensor) -> Tensor:
        """The newest items of each history, padded on the left."""
        nothing = torch.full_like(history[:, :1].sum(1, keepdim=True), PAD).expand(-1, self.length)
        ids_BL = torch.cat([nothing, history], dim=1)
        ids_BL = torch.where(ids_BL < 0, PAD, ids_BL)
        # Padding first, and everything else in its order.
        place_L = torch.ones_like(ids_BL).cumsum(1)
        order_BL = (place_L + torch.where(is_real(ids_BL), ids_BL.shape[1], 0)).sort(1).indices
        return ids_BL.gather(1, order_BL)[:, -self.length :]


def _exported(network: Recommender) -> DotProduct:
    """The network that can be written. That of `debiased-NAME` is the one of NAME."""
    if network.exported is None:
        kinds = [kind for kind in MODELS.values() if issubclass(kind, DotProduct) and kind.is_exportable]
        able = ", ".join(sorted(kind.name for kind in kinds))
        raise BadInput(
            f"{network.name} cannot be written as an ONNX file: {able} can, and debiased-NAME with any of "
            "them"
        )
    return network.exported


def _trace(scoring: Scoring) -> bytes:
    """The network as a file of this format."""
    # Steps that depend on values are followed as they go for these histories: there is padding in them.
    history = torch.tensor([[PAD, 0], [0, 0], [PAD, PAD]])
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            scoring,
            (history, torch.tensor(1)),
            buffer,  # type: ignore[arg-type]
            dynamo=False,  # the newer exporter refuses steps that depend on values (BERT4Rec, LightSANs)
            opset_version=OPSET,
            input_names=["history", "k"],
            output_names=["scores", "best", "best_scores"],
            dynamic_axes={
                "history": {0: "batch", 1: "length"},
                "scores": {0: "batch"},
                "best": {0: "batch", 1: "k"},
                "best_scores": {0: "batch", 1: "k"},
            },
        )
    return buffer.getvalue()


def _largest_difference(session: Any, network: DotProduct, items: int) -> float:
    """The largest difference to the model's own scores, for some random histories of all lengths."""
    random = np.random.default_rng(0)
    history = random.integers(0, items, (CHECKED, network.history)).astype(np.int32)
    for row, length in enumerate(np.linspace(0, network.history, CHECKED).astype(int)):
        history[row, : network.history - length] = PAD
    user = np.full(CHECKED, np.iinfo(np.int32).max, np.int64)
    contexts = bare_contexts(user, history, np.zeros(CHECKED, np.int64))
    expected = network.context(contexts) @ network.vectors(torch.arange(items)).T
    (scores,) = session.run(["scores"], {"history": history.astype(np.int64), "k": np.array(1)})
    return float((np.abs(scores - expected.numpy()) / (1 + np.abs(expected.numpy()))).max())


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError:
        raise BadInput("an ONNX file needs the extra: pip install '.[onnx]' in a clone of unskew") from None
    return onnx, onnxruntime


def _quiet(runtime: Any) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return options
