"""HSTU: one layer equals plain loops over positions."""

import torch

from tests.helpers.contract import close
from unskew.models.hstu import HSTU, TransductionUnit


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


@torch.no_grad()
def test_a_layer_is_what_loops_compute() -> None:
    torch.manual_seed(0)
    config = HSTU.Config(width=6, heads=2, history=4, dropout=0.0)
    unit = TransductionUnit(config).eval()
    unit.distance.copy_(torch.randn(5))
    unit.after.weight.copy_(torch.rand(6))
    x = torch.randn(1, 3, 6)
    normal = torch.nn.functional.layer_norm(x[0], (6,))
    gate, value, query, key = silu(normal @ unit.parts.weight.T + unit.parts.bias).split(6, dim=1)
    for place in range(3):
        read = torch.zeros(6)
        for head in (slice(0, 3), slice(3, 6)):
            for other in range(place + 1):
                logit = query[place, head] @ key[other, head] + unit.distance[place - other]
                read[head] += silu(logit) / 5 * value[other, head]
        scaled = torch.nn.functional.layer_norm(read, (6,)) * unit.after.weight * gate[place]
        expected = x[0, place] + unit.joined.weight @ scaled + unit.joined.bias
        close(unit(x)[0, place], expected)
