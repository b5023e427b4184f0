"""Several processes that train or evaluate one model together, as torchrun starts them.

Each process is a rank. Alone, a process is rank 0 of 1, and everything here returns its arguments. Together:

    part     every rank takes its part of the rows of a batch, of a test, or of the shards that are read
    divisor  a loss is divided by the mean over ranks of its number of terms, so that the mean of the ranks'
             gradients is the gradient of the whole batch
    average  gradients become their means over ranks, so the weights stay equal
    first    rank 0 alone checks, locks and writes; the others wait, and stop if it fails

All ranks must make the same calls in the same order. A call that waits longer than TIMEOUT for another rank
is an error. Nothing is pickled: what is sent are numbers, or files of the safetensors format.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import UnskewError

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
LAUNCHER = ".launcher"  # in a folder that ranks write together: which torchrun began it


@dataclass(frozen=True)
class Ranks:
    """The processes that work together, as one of them sees them.

    rank, size: the number of this process, from 0, and how many there are.
    local: the number of this process on its machine.
    launched: whether torchrun started this process.
    attempt: how often torchrun has restarted them.
    """

    rank: int = 0
    size: int = 1
    local: int = 0
    launched: bool = False
    attempt: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that checks, locks and writes."""
        return self.rank == 0

    # Who does what

    def part(self, rows: int) -> slice:
        """Which of some rows belong to this rank: each row belongs to one rank. Fewer rows than ranks belong
        to all ranks; in a mean over all of them, each counts the same."""
        if rows < self.size:
            return slice(0, rows)
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def shards(self, count: int) -> range:
        """Which of some shards belong to this rank: each shard belongs to one rank."""
        return range(self.rank, count, self.size)

    # Numbers

    def divisor(self, terms: int) -> float:
        """What the sum of so many terms of a loss is divided by: the mean over ranks of how many they have,
        and at least one in all."""
        if self.size == 1:
            return max(terms, 1)
        return max(self._sum([float(terms)])[0], 1.0) / self.size

    def mean(self, values: "Tensor") -> "Tensor":
        """The mean of the values of all ranks, without a gradient."""
        if self.size == 1:
            return values.mean()
        total, count = self._sum([float(values.sum()), float(values.numel())])
        return values.new_tensor(total / max(count, 1.0))

    def _sum(self, numbers: list[float]) -> list[float]:
        import torch
        from torch import distributed

        tensor = torch.tensor(numbers, dtype=torch.float64)
        _together(lambda: distributed.all_reduce(tensor))
        return tensor.tolist()

    def average(self, loss: "Tensor", parameters: "Iterable[nn.Parameter]") -> float:
        """Replace the gradients of the parameters by their means over all ranks; return the mean loss. A
        parameter that no rank has a gradient for keeps none."""
        if self.size == 1:
            return float(loss.detach())
        import torch
        from torch import distributed

        everything = list(parameters)
        learned = [parameter for parameter in everything if not self._average_rows(parameter)]
        given = loss.new_tensor([parameter.grad is not None for parameter in learned])
        parts = [loss.detach().reshape(1), given]
        for parameter in learned:
            parts.append(
                (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()
            )
        whole = torch.cat(parts)
        _together(lambda: distributed.all_reduce(whole))
        sizes = [1, len(learned), *(parameter.numel() for parameter in learned)]
        total, given, *gradients = whole.split(sizes)
        for parameter, has_gradient, gradient in zip(learned, given.tolist(), gradients, strict=True):
            if has_gradient:
                parameter.grad = gradient.view_as(parameter) / self.size
        return float(total) / self.size

    def _average_rows(self, parameter: "nn.Parameter") -> bool:
        """The same for a gradient that has only some rows. Returns whether it is such a gradient."""
        import torch

        gradient = parameter.grad
        if not self._sum([float(gradient is not None and gradient.is_sparse)])[0]:
            return False
        if gradient is None or not gradient.is_sparse:  # here the batch read nothing of the table
            gradient = torch.zeros_like(parameter).to_sparse(1)
        gradient = gradient.coalesce()
        rows, values = (
            self.gather(part.cpu().numpy()) for part in (gradient.indices()[0], gradient.values())
        )
        indices, scaled = torch.from_numpy(rows)[None], torch.from_numpy(values / self.size)
        whole = torch.sparse_coo_tensor(indices, scaled, gradient.shape, device=parameter.device)
        parameter.grad = whole.coalesce()
        return True

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """The rows of all ranks, one rank after the other. They differ in their number alone."""
        if self.size == 1:
            return values
        import torch
        from torch import distributed

        mine = np.ascontiguousarray(values)
        sizes = [
            int(size) for size in self._sum([float(self.rank == r) * len(mine) for r in range(self.size)])
        ]
        parts = [np.empty((size, *mine.shape[1:]), mine.dtype) for size in sizes]
        parts[self.rank] = mine
        for rank, part in enumerate(parts):
            sent = torch.from_numpy(part.view(np.uint8).reshape(-1)) if part.size else torch.zeros(0)
            if part.size:
                _together(lambda sent=sent, rank=rank: distributed.broadcast(sent, rank))  # type: ignore[misc]
        return np.concatenate(parts)

    # Rank 0

    def first(self, action: Callable[[], T]) -> T | None:
        """Let rank 0 do something, which the others wait for; their result is None. If it fails, all stop."""
        if self.size == 1:
            return action()
        result = None
        try:
            result = action() if self.is_first else None
        except BaseException:
            self._sum([1.0])
            raise
        if self._sum([0.0])[0]:
            raise UnskewError("rank 0 stopped, and says why")
        return result

    def same(self, flag: bool) -> bool:
        """What rank 0 says."""
        return flag if self.size == 1 else bool(self._sum([float(flag and self.is_first)])[0])

    def share(
        self, state: Callable[[], tuple[dict[str, "Tensor"], dict[str, str]]]
    ) -> tuple[dict[str, "Tensor"], dict[str, str]]:
        """Tensors and texts of rank 0, on all ranks: a file of the safetensors format, which is sent."""
        import torch
        from safetensors.torch import load, save
        from torch import distributed

        sent = b""
        if self.is_first:
            tensors, words = state()
            sent = save({name: value.detach().contiguous() for name, value in tensors.items()}, words)
        size = int(self._sum([float(len(sent))])[0])
        content = (
            torch.frombuffer(bytearray(sent), dtype=torch.uint8)
            if sent
            else torch.empty(size, dtype=torch.uint8)
        )
        _together(lambda: distributed.broadcast(content, 0))
        received = content.numpy().tobytes()
        return load(received), _words_of(received)

    def wait(self) -> None:
        """Go on when all ranks are here."""
        if self.size > 1:
            self._sum([0.0])

    # Restarts

    def mark(self, folder: Path) -> None:
        """Write down in a folder that this torchrun began it."""
        if self.launched and self.is_first:
            (folder / LAUNCHER).write_text(_launcher(), encoding="utf-8")

    def began(self, folder: Path) -> bool:
        """Whether torchrun has restarted these ranks, and an attempt before this one began the folder."""
        marker = folder / LAUNCHER
        return self.attempt > 0 and marker.is_file() and marker.read_text(encoding="utf-8") == _launcher()


ALONE = Ranks()
_ranks = ALONE


def ranks() -> Ranks:
    """The processes that work together; one, unless `joined` has been entered under torchrun."""
    return _ranks


@contextmanager
def joined() -> Iterator[Ranks]:
    """Work together with the other processes that torchrun started, within this context."""
    global _ranks  # noqa: PLW0603
    if "TORCHELASTIC_RUN_ID" not in os.environ or _ranks.launched:
        yield _ranks
        return
    from torch import distributed

    rank, size, local, attempt = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")
    )
    store = _store(rank, size, attempt)
    _together(
        lambda: distributed.init_process_group(
            _backend(), store=store, rank=rank, world_size=size, timeout=TIMEOUT
        )
    )
    _ranks = Ranks(rank, size, local, launched=True, attempt=attempt)
    try:
        yield _ranks
    finally:
        _ranks = ALONE
        distributed.destroy_process_group()


def _store(rank: int, size: int, attempt: int) -> Any:
    """Where the ranks find each other. The store of torchrun outlives the ranks, so each attempt has its own
    names in it; else it would find addresses of ranks that are gone. Where torchrun does not share its store
    (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1), every attempt has a new one."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    is_shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size
    store = TCPStore(*address, is_master=not is_shared and rank == 0, timeout=TIMEOUT)
    return PrefixStore(f"unskew/{attempt}", store)


def _backend() -> str:
    """Gloo for what is in main memory, and nccl for gradients on graphics cards."""
    import torch

    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def _launcher() -> str:
    """The torchrun that started this process: it stays when it restarts its processes."""
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {os.uname().nodename} {os.getppid()}"


def _together(call: Callable[[], Any]) -> None:
    """A call that waits for other ranks."""
    try:
        call()
    except RuntimeError as error:  # of torch.distributed
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        minutes = TIMEOUT.total_seconds() / 60
        raise UnskewError(
            f"another rank stopped, or did not answer within {minutes:g} minutes ({reason})"
        ) from error


def _words_of(content: bytes) -> dict[str, str]:
    """The texts in the head of a file of the safetensors format."""
    import json

    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    return dict(head.get("__metadata__", {}))
