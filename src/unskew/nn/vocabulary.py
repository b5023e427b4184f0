"""Vocabularies that are too large to be scored and updated as a whole in every step.

The softmax over all ids of a vocabulary is `full` or `sampled`. A sampled one scores the target and SAMPLES
ids that are drawn uniformly and corrected by log Q; gradients of the tables of vectors then have the rows
that the batch read, and Adam updates these rows alone (`RowAdam`). So the cost of a step does not depend on
the number of ids. With `auto`, vocabularies of more than FULL_SOFTMAX ids are sampled.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from unskew.core.config import Softmax

FULL_SOFTMAX = 100_000  # the largest number of ids of which `auto` scores all
SAMPLES = 2048  # how many are scored of a sampled vocabulary; the whole batch shares them

_softmax: ContextVar[Softmax] = ContextVar("softmax", default="auto")
_by_rows: ContextVar[bool] = ContextVar("by_rows", default=False)


@contextmanager
def softmax_of(kind: Softmax, by_rows: bool = False) -> Iterator[None]:
    """Compute losses and gradients with this kind of softmax, within this context.

    by_rows: whether the optimiser takes gradients that have only some rows.
    """
    tokens = _softmax.set(kind), _by_rows.set(by_rows)
    try:
        yield
    finally:
        _softmax.reset(tokens[0])
        _by_rows.reset(tokens[1])


def is_sampled(ids: int, kind: Softmax | None = None) -> bool:
    """Whether the softmax over so many ids is sampled."""
    kind = _softmax.get() if kind is None else kind
    return kind == "sampled" or (kind == "auto" and ids > FULL_SOFTMAX)


def has_row_gradient(ids: int) -> bool:
    """Whether the gradient of a table of so many vectors has only the rows that were read."""
    return _by_rows.get() and is_sampled(ids)


def softmax_in_words(kind: Softmax, sizes: dict[str, int]) -> str:
    """Which softmax is used for each vocabulary, and why."""
    parts = []
    for name, ids in sizes.items():
        if not is_sampled(ids, kind):
            parts.append(f"{name}: full, {ids:,} ids")
            continue
        why = f"auto: more than {FULL_SOFTMAX:,}" if kind == "auto" else "as asked for"
        parts.append(f"{name}: sampled, {SAMPLES:,} of {ids:,} ids ({why})")
    return "; ".join(parts)


class RowAdam(torch.optim.Adam):
    """Adam, where a gradient that has only some rows of a table changes these rows and their moments alone.
    All other gradients are those of Adam. Moments of a row wait while it gets no gradient, and so does its
    weight decay; steps are counted for the whole table."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._update_rows(parameter, group)
                    parameter.grad = None
        return super().step(closure)

    def _update_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
            state |= {name: torch.zeros_like(parameter) for name in names}
        gradient = gradient.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        state["step"] += 1
        step, (beta1, beta2) = float(state["step"]), group["betas"]
        before = parameter[rows]
        if group["weight_decay"]:
            values = values + group["weight_decay"] * before
        mean = state["exp_avg"][rows].lerp_(values, 1 - beta1)
        square = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(values, values, value=1 - beta2)
        state["exp_avg"][rows], state["exp_avg_sq"][rows] = mean, square
        if group["amsgrad"]:
            square = torch.maximum(state["max_exp_avg_sq"][rows], square)
            state["max_exp_avg_sq"][rows] = square
        deviation = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
        parameter[rows] = before - group["lr"] / (1 - beta1**step) * mean / deviation


@torch.no_grad()
def clip_gradients(parameters: list[nn.Parameter], most: float) -> None:
    """Scale all gradients down to a norm of at most `most`, also those that have only some rows."""
    sparse = [p for p in parameters if p.grad is not None and p.grad.is_sparse]
    if not sparse:
        nn.utils.clip_grad_norm_(parameters, most)
        return
    for parameter in sparse:
        assert parameter.grad is not None
        parameter.grad = parameter.grad.coalesce()
    values = [p.grad.values() if p.grad.is_sparse else p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([value.norm() for value in values]).norm()
    scale = (most / (norm + 1e-6)).clamp(max=1.0)
    for value in values:
        value.mul_(scale)
