"""Small instances of RecBole's models with weights, inputs and logits: load the weights into our models, and
get the same logits.

    build/recbole-env/bin/python benchmarks/recbole/numerics.py [--out build/recbole-numerics]

Writes MODEL.npz for each model (seed 0, eval mode, float32, 6 users, 12 items, histories of at most 8, width
16), with:

state/NAME   RecBole's state_dict, entry by entry
user         (contexts,) user codes; only FPMC reads them
history      (contexts, 8) item codes, oldest first, padded on the right with -1
length       (contexts,) of the histories: 8, 8, 5, 3, 2, 1
logits       (contexts, 12) of every item, in the order of its code
logits_zero_padding   the same with the vector of the padding id set to zero
settings     JSON: what the instance was built with

RecBole pads on the right; id 0 is padding, so item code c is id c + 1, and so for users. Its tables therefore
have a row 0 that we do not have. That row is random, not zero: it is initialised after having been zeroed,
and gets no gradient.

Every weight is redrawn, since biases of zero, norms of one and vectors of length 0.02 would let a wrong model
pass.

GRU4Rec    item_embedding; gru_layers.weight_ih_l0, weight_hh_l0 (PyTorch's order r, z, n; no biases); dense.
           The state after the last item, through dense, times item_embedding. Padding is never read.
SASRec     item_embedding, position_embedding (0 = oldest item), LayerNorm on their sum. trm_encoder.layer.N
           has multi_head_attention.query, key, value, dense, LayerNorm and feed_forward.dense_1, dense_2,
           LayerNorm: post-norm, erf GELU, eps 1e-12, causal. Read at the last item, times item_embedding.
           Padding is masked by adding -10000.
BERT4Rec   As SASRec, bidirectional; item_embedding has one row more, the last, which is the mask; head
           output_ffn, erf GELU, output_ln, then times item_embedding plus output_bias (rows of real ids). The
           mask is appended and then the OLDEST item is dropped, even of a short history: h1 .. hn is read as
           h2 .. hn, mask with positions from 0, at the mask.
LightSANs  item_embedding, LayerNorm on it; position_embedding is never added to it. Each layer's
           multi_head_attention has query, key, value, dense, LayerNorm, attpooling_key.theta and
           attpooling_value.theta (width, interests), pos_q_linear, pos_k_linear, pos_ln. Both attentions are
           softmaxes over the QUERY axis; position logits are scaled by (2 d_head)^-1/2 and again by
           d_head^-1/2. Nothing is masked, so a model with a mask can only agree on the contexts of full
           length, the first two.
STAMP      item_embedding; w1 (item), w2 (last item), w3 (mean), w0, b_a; mlp_a (memory), mlp_b (last item).
           The mean is added to the attended memory. Nothing is masked: a model with a mask agrees with
           logits_zero_padding.
FPMC       UI_emb (users), IU_emb (items, for users), IL_emb (items, after an item), LI_emb (last items); only
           the last item is read.
DIN        embedding_layer.token_embedding_table.item.embedding (and .user, unread);
           attention.att_mlp_layers.mlp_layers.1, 4, 7 on [q, v, q - v, q * v] with sigmoids, attention.dense,
           then divided by sqrt(width), padding zeroed, no softmax; dnn_mlp_layers.mlp_layers.1, 5, 9 on [u,
           q, u * q], each with its BatchNorm .2, .6, .10 and x * sigmoid(x); dnn_predict_layers.
"""

import argparse
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reference import MODELS, NAME, Catalogue, built, configured

USERS, ITEMS, LENGTH, WIDTH = 6, 12, 8, 16
LENGTHS = (8, 8, 5, 3, 2, 1)
TRANSFORMER = {"hidden_size": WIDTH, "inner_size": 4 * WIDTH, "n_layers": 2, "n_heads": 2}
SMALL: dict[str, dict[str, Any]] = {
    "GRU4Rec": {"embedding_size": WIDTH, "hidden_size": 2 * WIDTH},
    "BERT4Rec": TRANSFORMER,
    "SASRec": TRANSFORMER,
    "LightSANs": {**TRANSFORMER, "k_interests": 3},
    "STAMP": {"embedding_size": WIDTH},
    "FPMC": {"embedding_size": WIDTH},
    "DIN": {"embedding_size": WIDTH, "mlp_hidden_size": [24, 20, 16]},
}


def write_log(folder: Path) -> None:
    """A log by hand. Targets and users appear in the order of their codes, which makes code c the id c +
    1."""
    rows = [
        (item % USERS, item, [(item + step) % ITEMS for step in range(1, LENGTH + 1)])
        for item in range(ITEMS)
    ]
    lines = [f"{user}\t{item}\t{' '.join(map(str, history))}" for user, item, history in rows]
    head = "user_id:token\titem_id:token\titem_id_list:token_seq"
    (folder / NAME).mkdir()
    for part in ("train", "valid", "test"):
        (folder / NAME / f"{NAME}.{part}.inter").write_text(
            "\n".join([head, *lines]) + "\n", encoding="utf-8"
        )
    for name, size in (("user", USERS), ("item", ITEMS)):
        (folder / NAME / f"{NAME}.{name}").write_text(
            "\n".join([f"{name}_id:token", *map(str, range(size))]) + "\n", encoding="utf-8"
        )


def redraw(model: torch.nn.Module) -> None:
    random = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5, generator=random)
        elif value.is_floating_point():
            value.add_(torch.randn(value.shape, generator=random), alpha=0.3)


def contexts() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    history = np.full((len(LENGTHS), LENGTH), -1)
    for row, length in zip(history, LENGTHS, strict=True):
        row[:length] = random.permutation(ITEMS)[:length]
    return np.arange(len(LENGTHS)) % USERS, history


def zero_padding(model: torch.nn.Module) -> None:
    """Of item tables; what a user table has in row 0 is read by nobody."""
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings in (ITEMS + 1, ITEMS + 2):
            module.weight.data[0] = 0


def write(name: str, data: Path, out: Path) -> None:
    config = configured(name, data, data, seed=0, MAX_ITEM_LIST_LENGTH=LENGTH, **SMALL[name])
    dataset, _, model = built(config)
    redraw(model)
    catalogue = Catalogue(model.eval(), dataset, USERS, ITEMS)
    assert catalogue.items.tolist() == list(range(1, ITEMS + 1))
    assert catalogue.users.tolist() == list(range(1, USERS + 1))
    user, history = contexts()
    arrays = {f"state/{key}": value.numpy().copy() for key, value in model.state_dict().items()}
    arrays |= {
        "user": user,
        "history": history,
        "length": np.array(LENGTHS),
        "logits": catalogue.scores(user, history),
    }
    zero_padding(model)
    arrays |= {
        "logits_zero_padding": catalogue.scores(user, history),
        "settings": np.array(json.dumps(SMALL[name])),
    }
    np.savez_compressed(out / f"{name}.npz", allow_pickle=False, **arrays)
    print(
        f"{name}: {len(model.state_dict())} tensors, logits from {arrays['logits'].min():.3f} to "
        f"{arrays['logits'].max():.3f}"
    )


def main(out: Path) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        write_log(Path(scratch))
        for name in MODELS:
            write(name, Path(scratch), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "build" / "recbole-numerics")
    main(parser.parse_args().out)
