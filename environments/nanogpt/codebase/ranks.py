"""Several processes that train one model: each computes a part of every batch."""

import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Ranks:
    """Process `rank` of `world`, which computes on `device`. A single one needs no torchrun."""

    rank: int
    world: int
    device: torch.device
    # Ids of the parameters whose gradients are averaged while they are computed.
    overlapped: set = field(default_factory=set)

    @classmethod
    def join(cls):
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        device = choose_device()
        if world > 1:
            # Tensors on a CPU go by gloo even where there are GPUs: see `largest`.
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend)
        return cls(rank, world, device)

    def leave(self):
        if self.world > 1:
            dist.destroy_process_group()

    def sum(self, tensor):
        """The sum over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, *numbers):
        """The largest of each number over all ranks. By way of the CPU: no GPU has to wait."""
        if self.world == 1:
            return numbers
        found = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return tuple(found.tolist())

    def overlap(self, net, loss_function):
        """The loss function whose backward pass gives all ranks the mean gradients of `net`."""
        if self.world == 1:
            return loss_function
        self.overlapped.update(id(p) for p in net.parameters())
        return Overlapped(net, loss_function)

    def average_gradients(self, parameters):
        """Every rank had its part of the batch; afterwards all have the gradient of the whole.

        Those of the model already have it (see `overlap`); this is for parameters beside it.
        """
        gradients = [p.grad for p in parameters if id(p) not in self.overlapped]
        if self.world == 1 or not gradients:
            return
        # One message for all: hundreds of small ones would cost more than the copies.
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        parts = flat.div_(self.world).split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [p.view_as(g) for p, g in zip(parts, gradients)])


class Overlapped:
    """A loss function of several ranks: gradients travel while others are still computed.

    A compiled backward pass gives all gradients at its end. So DDP is asked, which the compiler
    knows: it cuts the graph where a message is full.
    """

    def __init__(self, net, loss_function):
        # Buffers stay each rank's own: to send them, all ranks would need as many batches.
        self.module = DistributedDataParallel(
            Loss(net, loss_function), broadcast_buffers=False, gradient_as_bucket_view=True
        )

    def __call__(self, net, tokens, targets):
        return self.module(tokens, targets)

    def no_sync(self):
        """A context in which each rank adds up its own gradients, for a later part to send."""
        return self.module.no_sync()


class Loss(torch.nn.Module):
    """A loss function and its model as one module, as DDP wants it."""

    def __init__(self, net, loss_function):
        super().__init__()
        self.net, self.loss_function = net, loss_function

    def forward(self, tokens, targets):
        return self.loss_function(self.net, tokens, targets)


def choose_device():
    if int(os.environ.get("ASSAY_GPUS") or 0) < 1:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SystemExit("ASSAY_GPUS asks for a GPU and torch finds none: is this the CUDA build?")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")  # TF32 for what is not in bfloat16
    return device
