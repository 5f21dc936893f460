"""Train the small vision transformer of the models `small_vit*` on CIFAR-10's training pictures, without privacy.

    python -m research.small_vit                     # writes small_vit.safetensors and small_vit.json in tasks
    python -m research.small_vit --device cuda --out folder
    python -m research.small_vit --check             # accuracy of the file on CIFAR-10's test pictures

Recipe: AdamW, one cosine cycle after a linear warm-up; pictures are moved by up to four pixels and mirrored at random;
labels are smoothed. Nothing was tuned, and the last weights are the ones that are kept: test pictures choose nothing.
A killed run goes on at its last whole epoch. The checksum goes into `SMALL_VIT` by hand.

The file holds the network and the head of ten classes in half precision. Tasks leave the head out.
"""

import argparse
import hashlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

import dphpo_bench as bench
from dphpo_bench.zoo.networks import PictureClassifier, empty
from dphpo_bench.zoo.vision import SMALL_VIT

OUT = Path(__file__).parents[1] / "tasks"
FILE = SMALL_VIT.weights.files[0][0]
RECIPE = {
    "epochs": 60,
    "batch_size": 512,
    "learning_rate": 2e-3,
    "weight_decay": 0.05,
    "warmup_epochs": 5,
    "label_smoothing": 0.1,
    "gradient_norm": 1.0,
    "moved_by": 4,
    "seed": 0,
}
EPOCHS, BATCH = int(RECIPE["epochs"]), int(RECIPE["batch_size"])


def pictures(train: bool) -> tuple[Tensor, Tensor]:
    """Return pixels, 0 to 255 as uint8, and labels."""
    task, source = bench.make_task("cifar10", "cnn"), bench.DataSource.resolve()
    task.prepare(source)
    records = task.load_train(source) if train else task.load_test(source)
    assert isinstance(records.inputs, Tensor)
    assert isinstance(records.targets, Tensor)
    return records.inputs.add(1).mul(127.5).round().byte(), records.targets


def augmented(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Move pictures, shape (n, 3, 32, 32), over a black edge, and mirror half of them."""
    n, _, side, _ = pixels.shape
    edge = int(RECIPE["moved_by"])

    def drawn(high: int) -> Tensor:
        return torch.randint(high, (n, 1), generator=generator).to(pixels.device)

    columns = torch.arange(side, device=pixels.device).expand(n, side)
    columns = torch.where(drawn(2) == 1, columns.flip(1), columns) + drawn(2 * edge + 1)
    rows = torch.arange(side, device=pixels.device) + drawn(2 * edge + 1)
    record = torch.arange(n, device=pixels.device)[:, None, None]
    moved = pad(pixels, (edge, edge, edge, edge)).permute(0, 2, 3, 1)[record, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2)


@torch.no_grad()
def accuracy(model: nn.Module, device: str) -> float:
    """Return the share of test pictures that the model gets right."""
    pixels, labels = pictures(train=False)
    model.eval()
    right = sum(
        int((model(some.to(device)).argmax(1).cpu() == of).sum())
        for some, of in zip(pixels.split(500), labels.split(500), strict=True)
    )
    return right / len(labels)


def rate(progress: float) -> float:
    """Return the share of the largest learning rate; `progress` in epochs."""
    warmup = RECIPE["warmup_epochs"]
    if progress < warmup:
        return progress / warmup
    return 0.5 + 0.5 * math.cos(math.pi * (progress - warmup) / (EPOCHS - warmup))


def train(device: str, state_file: Path) -> tuple[PictureClassifier, list[dict[str, Any]]]:
    """Train, or go on from `state_file`; return the model and the log, an entry for each epoch."""
    torch.manual_seed(int(RECIPE["seed"]))
    model = PictureClassifier(empty(SMALL_VIT.config()), 10, "all").to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE["learning_rate"], weight_decay=RECIPE["weight_decay"])
    log: list[dict[str, Any]] = []
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        log = state["log"]
    inputs, targets = (tensor.to(device) for tensor in pictures(train=True))
    model.train()
    for epoch in range(len(log), EPOCHS):
        began, losses, right = time.perf_counter(), torch.zeros((), device=device), torch.zeros((), device=device)
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(len(inputs), generator=generator).to(device)
        batches = order.split(BATCH)[: len(order) // BATCH]
        for step, batch in enumerate(batches):
            optimizer.param_groups[0]["lr"] = RECIPE["learning_rate"] * rate(epoch + (step + 1) / len(batches))
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                logits = model(augmented(inputs[batch], generator)).float()
            loss = cross_entropy(logits, targets[batch], label_smoothing=RECIPE["label_smoothing"])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), RECIPE["gradient_norm"])
            optimizer.step()
            losses += loss.detach() / len(batches)
            right += (logits.argmax(1) == targets[batch]).float().mean() / len(batches)
        seconds = time.perf_counter() - began
        log.append({"epoch": epoch + 1, "loss": round(float(losses), 4), "training_accuracy": round(float(right), 4)})
        sys.stdout.write(f"{log[-1]}; {seconds:.1f} s\n")
        sys.stdout.flush()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "log": log}, state_file)
    return model, log


def restored(file: Path) -> PictureClassifier:
    """Return the network and its head from the file."""
    model = PictureClassifier(empty(SMALL_VIT.config()), 10, "all")
    tensors = {name: tensor.float() for name, tensor in load_file(file).items()}
    model.head.load_state_dict({"weight": tensors.pop("head.weight"), "bias": tensors.pop("head.bias")})
    model.network.load_state_dict(tensors)
    return model


def main() -> None:
    """Train and write, or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the two files")
    parser.add_argument("--check", action="store_true", help="print the accuracy of the file that is there")
    options = parser.parse_args()
    file = options.out / FILE
    if options.check:
        sys.stdout.write(f"{accuracy(restored(file).to(options.device), options.device):.4f}\n")
        return
    model, log = train(options.device, file.with_suffix(".state"))
    tensors = {**model.network.state_dict(), "head.weight": model.head.weight, "head.bias": model.head.bias}
    halves = {name: tensor.detach().half().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(halves, file)
    found = {
        "trained_on": "CIFAR-10, its 50,000 training pictures",
        "recipe": RECIPE,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "weights": sum(tensor.numel() for tensor in halves.values()),
        "test_accuracy": accuracy(restored(file).to(options.device), options.device),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "torch": torch.__version__,
    }
    facts = json.dumps(found, indent=1).removesuffix("\n}")
    epochs = ",\n".join(f"  {json.dumps(epoch)}" for epoch in log)
    file.with_suffix(".json").write_text(f'{facts},\n "log": [\n{epochs}\n ]\n}}\n')
    sys.stdout.write(f"{found['sha256']} {found['test_accuracy']:.4f}\n")


if __name__ == "__main__":
    main()
