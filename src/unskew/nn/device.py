"""Where networks compute: on the processor, or on a graphics card.

Data stay in main memory, and batches are made there. The trainer moves each batch to the device of the
network before a loss, and `scores_at` moves contexts there and scores back. A network makes each new tensor
where its inputs or its parameters are.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from unskew.core.config import Device
from unskew.core.errors import BadInput
from unskew.core.ranks import ranks

T = TypeVar("T")

_device = torch.device("cpu")


def use_device(name: Device) -> torch.device:
    """Let all networks that this process builds or loads from now on compute on a device.

    name: `cuda`, `mps` or `cpu`; `auto` is the first of these that this machine has.
    """
    global _device  # noqa: PLW0603
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    if name not in there:
        raise BadInput(f"device {name}: expected auto, cpu, cuda or mps", field="device")
    if not there[name]:
        raise BadInput(f"device {name}: torch finds none on this machine; expected cpu", field="device")
    # Of the ranks on one machine, each has a card of its own.
    has_own_card = name == "cuda" and ranks().launched
    _device = torch.device(f"{name}:{ranks().local}" if has_own_card else name)
    return _device


def current_device() -> torch.device:
    """The device that `use_device` chose; the processor if it was never called."""
    return _device


def to_current_device(network: nn.Module) -> None:
    """Move a network to the device that `use_device` chose."""
    if _device.type == "mps" and any(tensor.dtype == torch.float64 for tensor in _tensors(network)):
        raise BadInput(
            "device mps: this model counts in float64, which mps does not have; expected cpu or cuda",
            field="device",
        )
    network.to(_device)


def device_of(scorer: object) -> torch.device:
    """The device of a network; that of anything else is the processor."""
    tensors = _tensors(scorer) if isinstance(scorer, nn.Module) else iter(())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _tensors(network: nn.Module) -> chain[Tensor]:
    return chain(network.parameters(), network.buffers())


def on_device(value: T, device: torch.device) -> T:
    """The same tensors on a device, in whatever tuples and mappings they are; everything else as it is."""
    if device.type == "cpu":
        return value
    return _moved(value, device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        parts = [_moved(part, device) for part in value]
        return type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
    if isinstance(value, Mapping):
        return {name: _moved(part, device) for name, part in value.items()}
    return value
