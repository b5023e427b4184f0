"""Networks compute on any device: no tensor is made on the processor while the others are elsewhere."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.contract import close, every_model, first_batch, phases, tiny
from tests.helpers.second_device import ELSEWHERE, SecondDevice, TwoDevicesError
from unskew.data.batches.batch import batch_of_rows, contexts
from unskew.models.base import MODELS, Recommender, build, model_named
from unskew.nn.debias import scores_at
from unskew.nn.device import on_device, use_device
from unskew.nn.layers import reseed


def losses(network: Recommender, batches: dict[str, Any]) -> dict[str, Tensor]:
    """The loss of each phase, and of its gradient the norm of each parameter."""
    found = {}
    for phase in phases(network):
        reseed(3)
        network.zero_grad()
        loss = phase.loss(on_device(batches[phase.name], next(network.parameters()).device))
        loss.backward()
        found[phase.name] = loss.detach().cpu()
        for name, parameter in network.named_parameters():
            if parameter.grad is not None:
                found[f"{phase.name} {name}"] = parameter.grad.norm().cpu()
    return found


def scored(network: Recommender, split: unskew.Split) -> dict[str, Tensor]:
    """What `forward`, the catalogue and the statistics of a network give."""
    log, time = split.log, np.repeat([split.train_end, split.valid_end], 3)
    context = contexts(log, np.array([0, 1, 2, 0, 1, len(log.users)]), time, network.history)
    rows = batch_of_rows(log, np.arange(0, len(log), 97), network.history, network.audience)
    device = next((t.device for t in [*network.parameters(), *network.buffers()]), torch.device("cpu"))
    with torch.no_grad():
        catalog = network.catalog(log, split.train_end, split.valid_end + 1)
        return {
            "forward": network(on_device(rows, device)).cpu(),
            "catalogue": scores_at(network, catalog, context, (None,))[0],
            "knows": network.knows(on_device(context, device)).cpu(),
            "statistics": torch.tensor(list(network.statistics(on_device(rows, device)).values())),
        }


def check_both_devices(name: str, config: Any, split: unskew.Split) -> None:
    def built() -> Recommender:
        torch.manual_seed(0)
        return build(model_named(name), split, config)

    here, there = built(), built()
    batches = {phase.name: first_batch(here, phase, split) for phase in phases(here)}
    expected = losses(here.train(), batches) | scored(here.eval(), split)
    with SecondDevice():
        there.to(ELSEWHERE)
        found = losses(there.train(), batches) | scored(there.eval(), split)
    assert found.keys() == expected.keys()
    for part, value in found.items():
        assert type(value) is Tensor, f"{part} is not on the processor"
        close(value, expected[part], 1e-3)


@every_model
def test_every_model_computes_on_another_device(kind: type[Recommender], split: unskew.Split) -> None:
    check_both_devices(kind.name, tiny(kind, dropout=0.0), split)


CORRECTIONS = [
    ("ips-both", "dual", "clipped"),
    ("ips", "item-user-pro", "snips"),
    ("ips", "exposure", "ips"),
    ("logit-offset", "power", "clipped"),
]


@pytest.mark.parametrize("backbone", ["sasrec", "din", "pulse"])
@pytest.mark.parametrize("correction", CORRECTIONS, ids="-".join)
def test_corrections_compute_on_another_device(
    backbone: str, correction: tuple[str, str, str], split: unskew.Split
) -> None:
    kind, (method, propensity, weights) = model_named(f"debiased-{backbone}"), correction
    config = kind.Config(
        backbone=tiny(MODELS[backbone], dropout=0.0),
        method=method,
        propensity=propensity,
        weights=weights,
        past_items=6,
        past_users=5,
        propensity_width=8,
    )
    check_both_devices(kind.name, config, split)


def test_a_tensor_that_is_made_on_the_processor_is_noticed(
    split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = MODELS["sasrec"]
    plain = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, rows: plain(self, rows) + torch.zeros(1))
    with pytest.raises(TwoDevicesError, match="is on the processor"):
        check_both_devices("sasrec", tiny(kind), split)


def test_a_device_that_is_not_there() -> None:
    assert use_device("auto") == use_device("cpu") == torch.device("cpu")
    for name in ("cuda", "mps"):
        with pytest.raises(unskew.BadInput, match=f"device {name}: torch finds none on this machine"):
            use_device(name)
    with pytest.raises(unskew.BadInput, match="expected auto, cpu, cuda or mps"):
        use_device("tpu")  # type: ignore[arg-type]
