from functools import partial

import pytest
import torch

from dphpo_bench.training import engine


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tiny tensors are slower on several threads, much slower where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def joined_as_on_a_gpu(monkeypatch):
    """Return what lets engines join the gradients that they join on a GPU, with another limit of numbers."""

    def join(most: int) -> None:
        is_small = partial(engine._is_small, "cuda")
        monkeypatch.setattr(engine, "_GPU_SMALL", most)
        monkeypatch.setattr(engine, "_is_small", lambda _, *gradients: is_small(*gradients))

    return join
