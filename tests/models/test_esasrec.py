"""eSASRec: gates open and close what a block adds, and one block equals plain formulae."""

import torch
from torch.nn import functional

from tests.helpers.contract import close
from unskew.api.create import create_model
from unskew.models.esasrec import ESASRec, GatedBlock


def block() -> GatedBlock:
    torch.manual_seed(0)
    return GatedBlock(6, 2, 0.0).eval()


@torch.no_grad()
def test_a_block_is_what_formulae_compute() -> None:
    made, x = block(), torch.randn(1, 3, 6)
    normal = functional.layer_norm(x[0], (6,))
    query, key, value = (normal @ made.query_key_value.weight.T + made.query_key_value.bias).split(6, dim=1)
    read = torch.zeros(3, 6)
    for place in range(3):
        for head in (slice(0, 3), slice(3, 6)):
            logits = torch.stack(
                [query[place, head] @ key[other, head] / 3**0.5 for other in range(place + 1)]
            )
            read[place, head] = logits.softmax(0) @ value[: place + 1, head]
    added = read @ made.attended.weight.T + made.attended.bias
    x1 = x[0] + torch.sigmoid(x[0] @ made.gate_attention.weight.T) * added
    normal = functional.layer_norm(x1, (6,))
    inner = functional.silu(normal @ made.open.weight.T) * (normal @ made.widen.weight.T)
    expected = x1 + torch.sigmoid(x1 @ made.gate_inner.weight.T) * (inner @ made.narrow.weight.T)
    close(made(x)[0], expected)


@torch.no_grad()
def test_closed_gates_add_nothing() -> None:
    made, x = block(), torch.rand(1, 3, 6) + 1
    for gate in (made.gate_attention, made.gate_inner):
        gate.weight.fill_(-100)
    close(made(x), x)


def test_its_loss_samples_negatives() -> None:
    config = create_model("esasrec").config
    assert isinstance(config, ESASRec.Config)
    assert (config.samples, config.deviation) == (1024, 0.02)
