"""CUDA graphs on a CPU: what is recorded is computed again, into the same memory, at each replay.

So a step that reads or writes anything but memory with a fixed address comes out wrong, as it does
on a GPU. That graphs share memory is not imitated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode


class Graph:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def replay(self) -> None:
        for function, args, options, before in self.calls:
            again = function(*args, **options)
            for old, new in zip(tensors(before), tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors(found: Any) -> list[torch.Tensor]:
    each = found if isinstance(found, tuple | list) else [found]
    return [one for one in each if isinstance(one, torch.Tensor)]


class Recorder(TorchFunctionMode):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        self.graph.calls.append((function, args, kwargs or {}, found))
        return found


def install(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace what the sampler uses of `torch.cuda`; `pools` and `emptied` are what it did."""
    seen = SimpleNamespace(pools=[], emptied=0)

    @contextmanager
    def record(graph: Graph, pool: Any = None) -> Iterator[None]:
        seen.pools.append(pool)
        with Recorder(graph):
            yield

    def empty_cache() -> None:
        seen.emptied += 1

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, fake in {
        "CUDAGraph": Graph,
        "graph": record,
        "graph_pool_handle": lambda: object(),
        "empty_cache": empty_cache,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return seen
