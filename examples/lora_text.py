"""A transformer for texts, of which only LoRA's matrices and a head are trained.

    pip install 'dphpo-bench[transformers]'
    python examples/lora_text.py

So that nothing is downloaded, the transformer is a tiny one, and what stands for its pretraining is some steps on
public texts made here. For a published one, `pretrained` calls `AutoModelForSequenceClassification.from_pretrained`.
"""

import random

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import dphpo_bench as bench

GOOD, BAD = ["good", "great", "fine"], ["bad", "poor", "dull"]
WORDS = ["the", "film", "plot", "scene", "was", "is", "a", "and", "so", "very", "long", "short", *GOOD, *BAD]
LENGTH = 12


def texts(n: int, seed: int) -> tuple[list[str], list[int]]:
    """Draw made-up reviews, labelled 1 if they have more good words than bad."""
    draw = random.Random(seed)
    reviews = [" ".join(draw.choices(WORDS, k=draw.randint(6, LENGTH))) for _ in range(n)]
    labels = [sum((word in GOOD) - (word in BAD) for word in text.split()) > 0 for text in reviews]
    return reviews, [int(label) for label in labels]


def encoded(reviews: list[str]) -> dict[str, torch.Tensor]:
    """Token ids and masks, by the names of the model's inputs; 0 fills up. As a tokenizer gives them."""
    ids = [[1 + WORDS.index(word) for word in review.split()] for review in reviews]
    padded = torch.tensor([row + [0] * (LENGTH - len(row)) for row in ids])
    return {"input_ids": padded, "attention_mask": (padded > 0).long()}


def pretrained() -> nn.Module:
    """Return a transformer that was trained on public texts."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1 + len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    reviews, labels = texts(512, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(30):
        optimizer.zero_grad()
        model(**encoded(reviews), labels=torch.tensor(labels)).loss.backward()
        optimizer.step()
    return model


def with_lora(model: nn.Module) -> nn.Module:
    """Return the model with LoRA at its attention; peft freezes all other weights but the head's."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], task_type="SEQ_CLS")
    adapted = get_peft_model(model, config).base_model.model
    nn.init.zeros_(
        adapted.classifier.modules_to_save["default"].weight
    )  # a new head: nothing is known of the private task
    nn.init.zeros_(adapted.classifier.modules_to_save["default"].bias)
    return adapted


def reviews_task() -> bench.ArrayTask:
    """Private reviews, and the transformer as it is."""
    train, train_labels = texts(1500, seed=2)
    test, test_labels = texts(500, seed=3)
    return bench.ArrayTask(
        "reviews",
        train=(encoded(train), train_labels),
        test=(encoded(test), test_labels),
        model=with_lora(pretrained()),
        training=bench.TrainingOptions(
            pretrained=True,  # every run starts from these very weights, which must not have seen the private records
            epochs=5,
            batch_size=250,
            learning_rate=1e-2,
        ),
        public=True,  # made up; leave this out if your records are private
    )


if __name__ == "__main__":
    task = reviews_task()
    model = task.build_model()
    moved, everything = (
        sum(weight.numel() for weight in weights) for weights in (bench.recipes.trainable(model), model.parameters())
    )
    print(f"{moved:,} of {everything:,} weights are trained")
    result = bench.run("auto_clipping", task, bench.PrivacyBudget(epsilon=3.0, delta=1e-4), seed=0)
    print(f"ε = {result.record.privacy.epsilon:.4f}, accuracy {result.record.metrics['accuracy']:.1%}")
