"""Networks that people have: each is trained right, compared with a loop, or refused by a line that says what works."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import NullProgress
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.functional import copied
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.own_model import OwnModel
from tests.own_task import array_task
from tests.training.models import flat, relative_error

N, CLASSES = 30, 3
TORCH = torch.Generator().manual_seed(0)
INPUTS: dict[str, Tensor] = {
    "numbers": torch.randn(N, 12, generator=TORCH),
    "series": torch.randn(N, 5, 8, generator=TORCH),
    "pictures": torch.randn(N, 3, 8, 8, generator=TORCH),
    "words": torch.randint(0, 20, (N, 6), generator=TORCH),
    "channels last": torch.randint(0, 256, (N, 8, 8, 3), generator=TORCH).to(torch.uint8),
    "grey": torch.randint(0, 256, (N, 8, 8), generator=TORCH).to(torch.uint8),
}
TARGETS = torch.randint(0, CLASSES, (N,), generator=TORCH)


class Calls(nn.Module):
    """A network whose forward pass is a function of its parts and its inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self._call = forward

    def forward(self, x: Tensor) -> Any:
        return self._call(self, x)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Unit(nn.Module):
    """A weight divided by its largest singular value."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight / torch.linalg.matrix_norm(weight, 2)


def net(first: nn.Module, width: int = 10) -> nn.Module:
    return nn.Sequential(first, nn.Tanh(), nn.Linear(width, CLASSES))


def pooled(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def texts(first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.Linear(8, CLASSES))


def series(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, Mean(), nn.Linear(8, CLASSES))


def twice(times: int = 2) -> nn.Module:
    shared = nn.Linear(12, 12)
    return nn.Sequential(nn.Linear(12, 12), *[nn.Tanh(), shared] * times, nn.Linear(12, CLASSES))


def twice_in_two_places() -> nn.Module:
    shared = nn.Sequential(nn.Linear(12, 12), nn.Tanh())
    return nn.Sequential(shared, nn.Sequential(nn.Linear(12, 12), shared), nn.Linear(12, CLASSES))


def tied() -> nn.Module:
    model = Calls(
        lambda m, x: m.out(m.back(m.inner(x).tanh()) @ m.inner.weight.mT),
        inner=nn.Linear(12, 8), back=nn.Linear(8, 12), out=nn.Linear(8, CLASSES),
    )  # fmt: skip
    model.back.weight = nn.Parameter(model.inner.weight.detach().mT.clone())
    return model


def two_with_one_weight() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, CLASSES))
    model[2].weight = model[0].weight
    return model


def pruned() -> nn.Module:
    layer = nn.Linear(12, 10)
    prune.random_unstructured(layer, "weight", amount=0.4)
    return net(layer)


def parametrized(layer: nn.Module, parametrization: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", parametrization)
    return net(layer)


class Attention(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(8, 2, **settings), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attention(x, x, x)[0].mean(1))


def with_hook() -> nn.Module:
    model = net(nn.Linear(12, 10))
    model[0].register_forward_hook(lambda *_: None)
    return model


def counts(m: Any, x: Tensor) -> Tensor:
    m.seen += 1
    return m.layers(x)


RIGHT: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "weight_norm, old": ("numbers", lambda: net(nn.utils.weight_norm(nn.Linear(12, 10)))),
    "weight_norm, new": ("numbers", lambda: net(parametrizations.weight_norm(nn.Linear(12, 10)))),
    "weight_norm of a linear classifier": ("numbers", lambda: nn.utils.weight_norm(nn.Linear(12, CLASSES))),
    "weight_norm of a recurrent layer": (
        "series",
        lambda: Calls(
            lambda m, x: m.last(m.rnn(x)[0].mean(1)),
            rnn=parametrizations.weight_norm(nn.GRU(8, 8, batch_first=True), "weight_hh_l0"),
            last=nn.Linear(8, CLASSES),
        ),
    ),
    "dropout between recurrent layers": (
        "series",
        lambda: Calls(
            lambda m, x: m.last(m.rnn(x)[0].mean(1)),
            rnn=nn.LSTM(8, 8, 2, batch_first=True, dropout=0.5),
            last=nn.Linear(8, CLASSES),
        ).eval(),
    ),
    "a scalar weight": (
        "numbers",
        lambda: Calls(
            lambda m, x: m.last(x) * m.scale, last=nn.Linear(12, CLASSES), scale=nn.Parameter(torch.tensor(1.5))
        ),
    ),
    "a scalar weight, item()": (
        "numbers",
        lambda: Calls(
            lambda m, x: m.last(x) * (m.scale if x[0, 0].item() > -999 else 1),
            last=nn.Linear(12, CLASSES),
            scale=nn.Parameter(torch.tensor(1.5)),
        ),
    ),
    "weight_norm of a convolution": (
        "pictures",
        lambda: pooled(nn.utils.weight_norm(nn.Conv2d(3, 4, 3)), nn.Tanh(), width=4),
    ),
    "orthogonal": ("numbers", lambda: net(parametrizations.orthogonal(nn.Linear(12, 10)))),
    "a parametrization of one's own": ("numbers", lambda: parametrized(nn.Linear(12, 10), Unit())),
    "spectral_norm, frozen": ("numbers", lambda: net(parametrizations.spectral_norm(nn.Linear(12, 10)).eval())),
    "prune": ("numbers", pruned),
    "a layer twice": ("numbers", twice),
    "a layer three times": ("numbers", lambda: twice(3)),
    "a block in two places": ("numbers", twice_in_two_places),
    "a weight used beside its layer": ("numbers", tied),
    "two layers with one weight": ("numbers", two_with_one_weight),
    "padding of words": ("words", lambda: texts(nn.Sequential(nn.Embedding(20, 8, padding_idx=3), Mean()))),
    "EmbeddingBag": ("words", lambda: texts(nn.EmbeddingBag(20, 8))),
    "EmbeddingBag, max": ("words", lambda: texts(nn.EmbeddingBag(20, 8, mode="max"))),
    "GroupNorm": ("pictures", lambda: pooled(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), width=4)),
    "InstanceNorm": ("pictures", lambda: pooled(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), width=4)),
    "encoder layer": ("series", lambda: series(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))),
    "attention": ("series", lambda: Attention(batch_first=True)),
    "scaled_dot_product_attention": (
        "series",
        lambda: Calls(
            lambda m, x: m.last(functional.scaled_dot_product_attention(m.q(x), m.k(x), x).mean(1)),
            q=nn.Linear(8, 8),
            k=nn.Linear(8, 8),
            last=nn.Linear(8, CLASSES),
        ),
    ),
    "transposed convolution": ("pictures", lambda: pooled(nn.ConvTranspose2d(3, 4, 3), nn.Tanh(), width=4)),
    "PixelShuffle, Upsample": (
        "pictures",
        lambda: pooled(nn.Conv2d(3, 4, 3), nn.PixelShuffle(2), nn.Upsample(scale_factor=2), nn.Tanh(), width=1),
    ),
    "Bilinear": ("numbers", lambda: Calls(lambda m, x: m.layer(x, x), layer=nn.Bilinear(12, 12, CLASSES))),
    "einsum": (
        "numbers",
        lambda: Calls(
            lambda m, x: torch.einsum("ni,ijc,nj->nc", x, m.w, x), w=nn.Parameter(torch.randn(12, 12, 3) / 12)
        ),
    ),
    "float64": ("numbers", lambda: net(nn.Linear(12, 10)).double()),
    "outputs by name": ("numbers", lambda: Calls(lambda m, x: {"logits": m.a(x)}, a=net(nn.Linear(12, 10)))),
    "compiled": ("numbers", lambda: torch.compile(net(nn.Linear(12, 10)), backend="eager")),
    "script": ("numbers", lambda: torch.jit.script(net(nn.Linear(12, 10)))),
    "trace": ("numbers", lambda: torch.jit.trace(net(nn.Linear(12, 10)), torch.randn(2, 12))),
    "looks at values": (
        "numbers",
        lambda: Calls(lambda m, x: m.a(x) if x.abs().max().item() < 1e9 else x[:, :3], a=net(nn.Linear(12, 10))),
    ),
}

REFUSED: dict[str, tuple[str, Callable[[], Any], str]] = {
    "spectral_norm, old": (
        "numbers",
        lambda: net(nn.utils.spectral_norm(nn.Linear(12, 10))),
        "'0.weight_u' changes when it is used",
    ),
    "sparse": ("words", lambda: texts(nn.EmbeddingBag(20, 8, sparse=True)), "not implemented for sparse"),
    "max_norm": (
        "words",
        lambda: texts(nn.Sequential(nn.Embedding(20, 8, max_norm=1.0), Mean())),
        r"'0.0' \(Embedding\) .* without",
    ),
    "lazy": ("numbers", lambda: net(nn.LazyLinear(10)), "know their shapes"),
    "meta": ("numbers", lambda: net(nn.Linear(12, 10)).to("meta"), "out of meta tensor"),
    "BatchNorm": (
        "numbers",
        lambda: net(nn.Sequential(nn.Linear(12, 10), nn.BatchNorm1d(10))),
        r"'0.1' \(BatchNorm1d\)",
    ),
    "SyncBatchNorm": ("numbers", lambda: net(nn.Sequential(nn.Linear(12, 10), nn.SyncBatchNorm(10))), "SyncBatchNorm"),
    "running statistics": (
        "pictures",
        lambda: pooled(nn.InstanceNorm2d(3, track_running_stats=True), width=3),
        r"'0' \(InstanceNorm2d\)",
    ),
    "complex": (
        "numbers",
        lambda: Calls(lambda m, x: (x.cfloat() @ m.w).abs(), w=nn.Parameter(torch.randn(12, 3) + 0j)),
        "complex64 in 'w'. Convert",
    ),
    "bfloat16": ("numbers", lambda: net(nn.Linear(12, 10)).bfloat16(), r"bfloat16 in '0.weight'.* model.float\(\)"),
    "float16": ("numbers", lambda: net(nn.Linear(12, 10)).half(), r"float16 in '0.weight'.* model.float\(\)"),
    "a counter": (
        "numbers",
        lambda: Calls(counts, seen=torch.zeros(()), layers=net(nn.Linear(12, 10))),
        "'seen' changes when it is",
    ),
    "a tuple": ("numbers", lambda: Calls(lambda m, x: (m.a(x), x), a=nn.Linear(12, 3)), "got tuple. Return the tensor"),
    "nothing": ("numbers", lambda: Calls(lambda *_: None, a=nn.Linear(12, 3)), "got NoneType. Return the tensor"),
    "other names": (
        "numbers",
        lambda: Calls(lambda m, x: {"out": m.a(x)}, a=nn.Linear(12, 3)),
        "called 'logits'; got out",
    ),
    "a hook": ("numbers", with_hook, "without hooks, .*; 0 has one. Remove it"),
    "quantised": (
        "numbers",
        lambda: torch.ao.quantization.quantize_dynamic(net(nn.Linear(12, 10)), {nn.Linear}),
        "with weights to train, .* a quantised model as it was",
    ),
    "batches of 16": (
        "numbers",
        lambda: Calls(lambda m, x: m.b(m.a(x).view(16, -1)), a=nn.Linear(12, 10), b=nn.Linear(10, 3)),
        "shape .* takes any number of records",
    ),
    "detached": (
        "numbers",
        lambda: Calls(lambda m, x: m.a(x).detach(), a=nn.Linear(12, 3)),
        r"gradients of 0 .* detach\(\) its outputs",
    ),
    "squeezed": (
        "numbers",
        lambda: Calls(lambda m, x: m.b(m.a(x).squeeze()), a=nn.Linear(12, 10), b=nn.Linear(10, 3)),
        r"Expected model outputs of shape \(1, n_classes",
    ),
    "another width": ("numbers", lambda: net(nn.Linear(13, 10)), r"shape \(1, 12\): RuntimeError: mat1"),
    "a function that raises": ("numbers", lambda: nn.Linear(-1, 3), "Cannot make a model of .* Pass a module"),
}


def task_of(inputs: str, make: Callable[[], Any], **options: Any) -> bench.ArrayTask:
    return array_task("own", (INPUTS[inputs], TARGETS), make, batch_size=10, epochs=1, public=True, **options)


def by_loop(model: nn.Module, inputs: Tensor, bound: float) -> list[Tensor]:
    model = copied(model).double()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
    for x, y in zip(inputs, TARGETS, strict=True):
        outputs = model(x[None].double() if x.is_floating_point() else x[None])
        outputs = outputs["logits"] if isinstance(outputs, dict) else outputs
        loss = functional.cross_entropy(outputs, y[None])
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        factor = min(1.0, bound / float(flat(list(gradients)).norm()))
        total = [sum_ + factor * gradient for sum_, gradient in zip(total, gradients, strict=True)]
    return total


def engine_of(task: bench.ArrayTask) -> tuple[GradientEngine, nn.Module]:
    model = OwnModel(task.build_model, task.load_train(None), task.objective())  # type: ignore[arg-type]
    return model.engine(model.model), model.model


@pytest.mark.filterwarnings("ignore")  # of torch, about names that it would like better
@pytest.mark.parametrize("form", ["function", "module"])
@pytest.mark.parametrize("name", RIGHT)
def test_gradients_are_those_of_a_loop(name: str, form: str) -> None:
    torch.manual_seed(0)
    kind, make = RIGHT[name]
    expected_model = make()
    task = task_of(kind, make) if form == "function" else task_of(kind, expected_model, pretrained=True)
    engine, model = engine_of(task)
    inputs = INPUTS[kind]
    for _ in range(2):
        torch.manual_seed(0)
        sums = engine.clipped_sum(inputs, TARGETS, Abadi(0.05))
    if not isinstance(model, torch.jit.ScriptModule | torch._dynamo.OptimizedModule):
        torch.manual_seed(0)
        fresh = make()
        fresh.load_state_dict(model.state_dict())
        for mine, theirs in zip(fresh.modules(), model.modules(), strict=True):
            mine.training = theirs.training
        assert relative_error(sums, by_loop(fresh, inputs, 0.05)) < 1e-5
    else:
        layers = net(nn.Linear(12, 10))
        for parameter, value in zip(layers.parameters(), model.parameters(), strict=True):
            parameter.data = value.detach().clone()
        assert relative_error(sums, by_loop(layers, inputs, 0.05)) < 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["function", "module"])
@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_in_a_line_that_helps(name: str, form: str) -> None:
    kind, make, message = REFUSED[name]
    if form == "module" and "function" in name:
        return
    torch.manual_seed(0)
    with pytest.raises(InvalidValueError) as caught:
        task_of(kind, make) if form == "function" else task_of(kind, make(), pretrained=True)
    text = str(caught.value)
    assert re.search(message, text), text
    assert len(text.splitlines()) == 1
    assert len(text) < 400


class DropsRecords(nn.Module):
    """Stochastic depth: a branch is left out for some records, or for all."""

    def __init__(self, for_all: bool) -> None:
        super().__init__()
        self.for_all, self.branch = for_all, nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x + self.branch(x)
        if self.for_all:
            return x + self.branch(x) if torch.rand(()) < 0.5 else x
        return x + self.branch(x) * x.new_empty(len(x), 1).bernoulli_(0.5)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: DropsRecords(for_all=False),
        nn.AlphaDropout,
        lambda: Calls(lambda m, x: x + 0.1 * torch.randn_like(x) if m.training else x),
        lambda: Calls(lambda m, x: functional.gumbel_softmax(x) if m.training else x),
    ],
)
def test_layers_that_draw_go_layer_by_layer(layer: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    task = task_of("numbers", lambda: nn.Sequential(nn.Linear(12, 12), layer(), nn.Linear(12, CLASSES)))
    assert isinstance(engine_of(task)[0], LayerwiseEngine)


def test_a_layer_with_dropout_goes_layer_by_layer_and_draws_for_each_record() -> None:
    torch.manual_seed(0)
    task = task_of("numbers", lambda: nn.Sequential(nn.Linear(12, 50), nn.Dropout(0.5), nn.Linear(50, CLASSES)))
    engine, _ = engine_of(task)
    assert isinstance(engine, LayerwiseEngine)
    same = INPUTS["numbers"][:1].expand(2, -1)
    of_each = [
        gradients.dense(parameter.shape)
        for parameter, (gradients,) in zip(
            engine.parameters, engine._gradients(same, TARGETS[:1].expand(2)), strict=True
        )
    ]
    assert not torch.equal(of_each[0][0], of_each[0][1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [lambda: net(nn.utils.weight_norm(nn.Linear(12, 10))), pruned])
def test_weights_that_a_hook_makes_do_not_follow_a_seed(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(InvalidValueError, match=r"0 \(Linear\) has weights that a hook makes. Pass a function"):
        task_of("numbers", make())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["weight_norm, old", "prune", "a layer twice", "script", "orthogonal"])
def test_a_run_trains_them(name: str) -> None:
    kind, make = RIGHT[name]
    result = bench.run(
        "dp_sgd",
        task_of(kind, make),
        bench.PrivacyBudget(3.0, 1e-3),
        seed=0,
        progress=NullProgress(),
        execution=bench.ExecutionOptions(device="cpu"),
    )
    assert result.record.status == "ok"
    assert result.model is not None
    before, after = make().state_dict(), result.model.state_dict()
    assert before.keys() == after.keys()


def test_what_is_pruned_stays_pruned() -> None:
    layer = nn.Linear(12, 10)
    prune.random_unstructured(layer, "weight", amount=0.4)
    task = task_of("numbers", net(layer), pretrained=True)
    result = bench.run(
        "dp_sgd",
        task,
        bench.PrivacyBudget(3.0, 1e-3),
        seed=0,
        progress=NullProgress(),
        execution=bench.ExecutionOptions(device="cpu"),
    )
    assert result.model is not None
    trained = result.model[0]
    assert torch.equal(trained.weight_mask, layer.weight_mask)
    with torch.no_grad():
        result.model(INPUTS["numbers"])
    assert torch.equal(trained.weight == 0, layer.weight_mask == 0)


def test_a_model_that_fails_on_private_records_ends_the_run_in_a_line() -> None:
    def make() -> nn.Module:
        return Calls(lambda m, x: m.a(x) if not 0.4 < float(x[0, 0]) < 0.6 else m.a(x[:, 1:]), a=net(nn.Linear(12, 10)))

    result = bench.run(
        "dp_sgd", task_of("numbers", make), bench.PrivacyBudget(3.0, 1e-3), seed=0, progress=NullProgress(), check=False
    )
    assert result.record.status == "failed"
    assert "The model raised RuntimeError on private records" in str(result.record.error)
    assert "mat1" not in str(result.record.error)


def test_a_plug_ins_model_that_raises_is_refused_in_a_line() -> None:
    from dphpo_bench.testing import Blobs

    class Fails(Blobs):
        def build_model(self) -> nn.Module:
            model = super().build_model()
            return nn.Sequential(model, nn.Linear(99, 3))

    with pytest.raises(bench.errors.DphpoBenchError, match=r"fails on made-up records .*mat1 and mat2") as caught:
        bench.run("dp_sgd", Fails(), bench.PrivacyBudget(3.0, 1e-3), seed=0, progress=NullProgress())
    assert "\n" not in str(caught.value)
