"""RecBole's weights in our models: the logits must be RecBole's, to rounding.

    build/recbole-env/bin/python benchmarks/recbole/numerics.py      # writes build/recbole-numerics
    python benchmarks/recbole/agree.py                               # exit code 1 if a model differs

GRU4Rec, STAMP, FPMC, BERT4Rec and LightSANs. Not SASRec and DIN: RecBole's SASRec normalises after each part,
ours is the authors'; its DIN has three batch-normalised layers in unit and tower, ours the authors' two with
Dice. STAMP is compared with RecBole's padding vector set to zero, LightSANs on full histories and with
`softmax_axis="query"`, because RecBole masks neither.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unskew
from unskew.data.batches.batch import bare_contexts
from unskew.data.log.views import PAD
from unskew.models.base import DotProduct, build
from unskew.models.bert4rec import BERT4Rec
from unskew.models.fpmc import FPMC
from unskew.models.gru4rec import GRU4Rec
from unskew.models.lightsans import LightSANs
from unskew.models.stamp import STAMP

REFERENCE = Path(__file__).parents[2] / "build" / "recbole-numerics"
USERS, ITEMS, LENGTH, WIDTH, HEADS = 6, 12, 8, 16, 2
CLOSE = 1e-4

State = dict[str, Tensor]


def split() -> unskew.Split:
    """Twelve items and six users, all known; their codes are RecBole's ids less one."""
    user = np.arange(ITEMS) % USERS
    return unskew.split(
        unskew.read({"user": user, "item": np.arange(ITEMS), "time": np.arange(ITEMS)}), fractions=(1, 0, 0)
    )


def gru4rec(state: State) -> DotProduct:
    model = build(GRU4Rec, split(), GRU4Rec.Config(width=WIDTH, hidden=2 * WIDTH, history=LENGTH))
    model.items.weight.copy_(state["item_embedding.weight"][1:])
    for name, parameter in model.gru.named_parameters():
        parameter.copy_(state[f"gru_layers.{name}"]) if name.startswith("weight") else parameter.zero_()
    copy(model.back, state, "dense")
    return model


def stamp(state: State) -> DotProduct:
    model = build(STAMP, split(), STAMP.Config(width=WIDTH, history=LENGTH))
    model.items.weight.copy_(state["item_embedding.weight"][1:])
    for layer, name in ((model.of_item, "w1"), (model.of_last, "w2"), (model.of_mean, "w3")):
        layer.weight.copy_(state[f"{name}.weight"])
    model.of_item.bias.copy_(state["b_a"])
    model.strength.copy_(state["w0.weight"][0])
    copy(model.memory, state, "mlp_a")
    copy(model.last, state, "mlp_b")
    return model


def fpmc(state: State) -> DotProduct:
    model = build(FPMC, split(), FPMC.Config(width=WIDTH))
    model.users.weight.copy_(state["UI_emb.weight"][1:])
    model.items.weight.copy_(torch.cat([state["IU_emb.weight"], state["IL_emb.weight"]], dim=1)[1:])
    model.basket.weight.copy_(state["LI_emb.weight"][1:])
    return model


def bert4rec(state: State) -> DotProduct:
    """RecBole drops the oldest item, even of a short history; so is what our model is given (`shorter`)."""
    model = build(
        BERT4Rec, split(), BERT4Rec.Config(width=WIDTH, inner=4 * WIDTH, heads=HEADS, history=LENGTH - 1)
    )
    model.items.weight.copy_(state["item_embedding.weight"][1:-1])
    model.items.unknown.copy_(state["item_embedding.weight"][-1])
    model.bias.weight.copy_(state["output_bias"][1:, None])
    copy(model.norm, state, "LayerNorm")
    copy(model.head[0], state, "output_ffn")
    copy(model.head[2], state, "output_ln")
    blocks: list[Any] = list(model.blocks)
    for number, block in enumerate(blocks):
        attention = copy_block(block, state, number)
        copy(block.query, state, f"{attention}.query")
        for kind, part in (("weight", block.key_value.weight), ("bias", block.key_value.bias)):
            part.copy_(torch.cat([state[f"{attention}.{name}.{kind}"] for name in ("key", "value")]))
    return model


def lightsans(state: State) -> DotProduct:
    config = LightSANs.Config(
        width=WIDTH, inner=4 * WIDTH, heads=HEADS, history=LENGTH, interests=3, softmax_axis="query"
    )
    model = build(LightSANs, split(), config)
    model.items.weight.copy_(state["item_embedding.weight"][1:])
    model.positions.copy_(
        state["position_embedding.weight"].flip(0)
    )  # of full histories; ours are counted from the newest
    copy(model.norm, state, "LayerNorm")
    blocks: list[Any] = list(model.blocks)
    for number, block in enumerate(blocks):
        attention = copy_block(block, state, number)
        twice = (2 * WIDTH / HEADS) ** -0.5  # RecBole scales the logits of places a second time
        for kind in ("weight", "bias"):
            parts = [state[f"{attention}.{name}.{kind}"] for name in ("query", "key", "value")]
            getattr(block.query_key_value, kind).copy_(torch.cat(parts))
            places = [state[f"{attention}.pos_{name}_linear.{kind}"] for name in ("q", "k")]
            getattr(block.place_query_key, kind).copy_(torch.cat([twice * places[0], places[1]]))
        block.theta_key.copy_(state[f"{attention}.attpooling_key.theta"])
        block.theta_value.copy_(state[f"{attention}.attpooling_value.theta"])
        copy(block.of_places, state, f"{attention}.pos_ln")
    return model


def copy_block(block: Any, state: State, number: int) -> str:
    """What the blocks of both transformers have in common; the name of the attention."""
    name = f"trm_encoder.layer.{number}"
    attention = f"{name}.multi_head_attention"
    copy(block.attended, state, f"{attention}.dense")
    copy(block.after_attention, state, f"{attention}.LayerNorm")
    copy(block.widen, state, f"{name}.feed_forward.dense_1")
    copy(block.narrow, state, f"{name}.feed_forward.dense_2")
    copy(block.after_inner, state, f"{name}.feed_forward.LayerNorm")
    return attention


def copy(layer: Any, state: State, name: str) -> None:
    layer.weight.copy_(state[f"{name}.weight"])
    layer.bias.copy_(state[f"{name}.bias"])


def logits(model: DotProduct, user: int, history: np.ndarray[Any, Any]) -> Tensor:
    """Of all items. BERT4Rec's and LightSANs' norms have RecBole's epsilon."""
    for layer in model.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.eps = 1e-12
    context = bare_contexts(np.array([user]), history[None].astype(np.int32), np.array([10**6]))
    return model.eval().context(context)[0] @ model.vectors(torch.arange(ITEMS)).T


MODELS: dict[str, tuple[Callable[[State], DotProduct], str]] = {
    "GRU4Rec": (gru4rec, "logits"),
    "STAMP": (stamp, "logits_zero_padding"),
    "FPMC": (fpmc, "logits"),
    "BERT4Rec": (bert4rec, "logits"),
    "LightSANs": (lightsans, "logits"),
}


@torch.no_grad()
def main() -> int:
    worst = {}
    for name, (make, key) in MODELS.items():
        stored = np.load(REFERENCE / f"{name}.npz")
        state = {
            path.removeprefix("state/"): torch.from_numpy(stored[path])
            for path in stored.files
            if path.startswith("state/")
        }
        model, differences = make(state), []
        for user, history, expected in zip(stored["user"], stored["history"], stored[key], strict=True):
            read = history[history != PAD]
            if name == "LightSANs" and len(read) < LENGTH:
                continue
            if isinstance(model, BERT4Rec):
                read = read[1:]
                # RecBole counts places from the oldest, ours from the newest: of one length they are each
                # other's reverse.
                model.positions[: len(read) + 1] = state["position_embedding.weight"][: len(read) + 1].flip(0)
            differences.append(
                float((logits(model, int(user), read) - torch.from_numpy(expected)).abs().max())
            )
        worst[name] = max(differences)
        print(f"{name:10} {len(differences)} histories, largest difference of a logit {worst[name]:.1e}")
    return int(max(worst.values()) > CLOSE)


if __name__ == "__main__":
    sys.exit(main())
