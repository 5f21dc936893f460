"""Structures of networks as JSON, and back, without other code."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from dphpo_bench.base.errors import DataError
from dphpo_bench.harness.trained import network_json, network_of


def filled(network: nn.Module) -> nn.Module:
    """Build a network from the structure of another, with its weights."""
    text = network_json(network)
    assert text is not None
    built = network_of(text)
    assert all(parameter.is_meta for parameter in built.parameters())
    built.load_state_dict(network.state_dict(), assign=True)
    return built


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (nn.Linear(4, 2, bias=False), torch.randn(3, 4)),
        (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2)), torch.randn(3, 4)),
        (
            nn.Sequential(
                OrderedDict(
                    body=nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding="valid", bias=False), nn.GroupNorm(2, 4)),
                    act=nn.GELU(approximate="tanh"),
                    pool=nn.AdaptiveAvgPool2d((None, 2)),
                    flat=nn.Flatten(),
                    head=nn.Linear(4 * 3 * 2, 5),
                )
            ),
            torch.randn(3, 3, 8, 8),
        ),
        (
            nn.Sequential(nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), nn.SiLU(), nn.MaxPool1d(2)),
            torch.randn(3, 2, 8),
        ),
        (nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.LayerNorm(4, eps=1e-3)), torch.arange(8).reshape(2, 4)),
        (nn.Linear(4, 2).bfloat16(), torch.randn(3, 4).bfloat16()),
    ],
)
def test_a_network_of_usual_layers_comes_back(network: nn.Module, inputs: torch.Tensor) -> None:
    built = filled(network)
    assert repr(built) == repr(network)
    assert torch.equal(built.eval()(inputs), network.eval()(inputs))


def test_other_code_is_not_described() -> None:
    class Mine(nn.Linear):
        pass

    class Tanh(nn.Module):
        """The name of one of torch's."""

    hooked, changed = nn.Linear(4, 2), nn.Linear(4, 2)
    hooked.register_forward_hook(lambda *_: None)
    changed.forward = lambda x: x  # type: ignore[method-assign]
    lying = nn.Linear(4, 2)
    lying.in_features = 5
    for network in (
        Mine(4, 2),
        Tanh(),
        nn.Sequential(nn.Linear(4, 2), Mine(2, 2)),
        hooked,
        changed,
        lying,
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
        nn.ModuleList([nn.Linear(4, 2)]),
    ):
        assert network_json(network) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        '["Linear",{}]',
        '["Linear",{"in_features":"a","out_features":2}]',
        '["Linear",{"in_features":2,"out_features":2,"device":"cpu"}]',
        '["os.system",{"command":"true"}]',
        '["GroupNorm",{"num_groups":0,"num_channels":4}]',
        "[" * 10_000,
        "".join(60 * ['["Sequential",[["0",']) + '["Tanh",{}]' + 60 * "]]]",
    ],
)
def test_what_is_no_structure_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"Expected the structure of a network of torch's layers") as caught:
        network_of(text)
    assert "\n" not in str(caught.value)
