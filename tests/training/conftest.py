import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Tiny tensors are slower on several threads, much slower where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
