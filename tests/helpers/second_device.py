"""A device that this machine does not have.

Its tensors say that they are on the device `meta`, and hold their values in main memory. As on a graphics
card, an operation on tensors of two devices is an error, and so is `numpy()` of a tensor that is elsewhere.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

HERE, ELSEWHERE = torch.device("cpu"), torch.device("meta")
MATH = 0  # of the kernels of attention, the one that every device has
TRANSFERS = ("aten._to_copy", "aten.copy_")


class TwoDevicesError(AssertionError):
    """An operation had tensors of both devices."""


class Elsewhere(Tensor):
    """A tensor on the second device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "Elsewhere":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=ELSEWHERE,
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def tolist(self) -> Any:
        """The values, which every device gives; torch refuses this to subclasses."""
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operation, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Within this context, tensors can be made on the device `meta` and moved there."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operation, args, kwargs or {})


def run(operation: Any, args: Any, kwargs: Any) -> Any:
    name, tensors = str(operation), [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = [isinstance(tensor, Elsewhere) for tensor in tensors]
    if name.startswith("aten._fused_sdp_choice"):
        return MATH
    if any(away) and not name.startswith(TRANSFERS):
        here = [tensor for tensor, is_away in zip(tensors, away, strict=True) if not is_away and tensor.ndim]
        if here:
            raise TwoDevicesError(
                f"{name}: a tensor {tuple(here[0].shape)} is on the processor, others are not"
            )
    asked = kwargs.get("device")
    result_is_away = any(away) if asked is None else torch.device(asked) == ELSEWHERE
    if name.startswith("aten.copy_"):
        result_is_away = away[0]
    if asked is not None:
        kwargs = kwargs | {"device": HERE}
    held = tree_map(lambda leaf: leaf.held if isinstance(leaf, Elsewhere) else leaf, (args, kwargs))
    result = operation(*held[0], **held[1])
    if torch.Tag.inplace_view in operation.tags:  # its shape has changed, and so must what it says of itself
        with no_dispatch():
            operation(*args, **kwargs)
    by_held = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, Elsewhere)}

    def wrapped(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in by_held:  # changed in place
            return by_held[id(leaf)]
        return Elsewhere(leaf) if result_is_away else leaf

    return tree_map(wrapped, result)
