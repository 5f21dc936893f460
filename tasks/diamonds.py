"""Diamonds: the price of a stone from its weight and its grades; the regression of many records, from plotnine."""

import hashlib
import json
import math
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import dphpo_bench as bench

from .synthetic import OnVectors, PackagedTask

if TYPE_CHECKING:
    import pandas as pd

CONTENT_HASH = "bbb3cb8cb3b4bc22bf9dd9298cbe9c8c09343700deef662abc59736a0f6f6f51"
N_TRAIN = 43_300
# A stone is a training record if the first byte of its digest is below this: about four in five.
TRAIN_BELOW = 205
# Usual sizes and shapes, and the grades of the trade; nothing here is from these records.
COLUMNS = bench.Columns(
    {
        "log carat": bench.Number(typical=-0.3, spread=0.6),
        "depth": bench.Number(typical=61.5, spread=1.5),
        "table": bench.Number(typical=57, spread=2.5),
        "cut": bench.Category(("Fair", "Good", "Very Good", "Premium", "Ideal")),
        "color": bench.Category(tuple("DEFGHIJ")),
        "clarity": bench.Category(("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")),
    }
)
PRICES = (326, 18_823)
"""The documented range of the target, whose logarithm becomes -1 to 1."""


class Diamonds(PackagedTask, OnVectors):
    """53,940 stones (Wickham's ggplot2), split by a rule on each record alone; a linear model from zero, or a network.

    The table is part of plotnine, `pip install "dphpo-bench[tables]"`. Its lengths x, y and z are left out: they follow
    from the weight, and some are wrong.
    """

    name = "diamonds"
    summary = "plotnine's diamonds: the logarithm of a price, regression from a table, N=43,300; packaged."
    columns = COLUMNS
    content = json.dumps([CONTENT_HASH, TRAIN_BELOW, COLUMNS.to_json(), PRICES])

    @property
    def facts(self) -> bench.TaskFacts:
        return self._stated(N_TRAIN, COLUMNS.size, batch_size=2048, epochs=20, kind="regression", error_bound=1.0)

    @property
    def sibling(self) -> bench.Task:
        """A made-up rule. Each column adds about 1 to the squared length of a record."""
        return self._made_up((6 / COLUMNS.size) ** 0.5)

    def _load(self, train: bool) -> bench.Records:
        import numpy as np
        import torch

        # Stones that differ by their price or lengths alone have the same digest.
        digests, frame = packaged_table("plotnine", "data/diamonds.csv", CONTENT_HASH, unhashed=4)
        chosen = frame[np.array([digest[0] < TRAIN_BELOW for digest in digests]) == train]
        low, high = map(math.log, PRICES)
        inputs = COLUMNS.encode(chosen.assign(**{"log carat": np.log(chosen["carat"])})[list(COLUMNS)])
        targets = 2 * (np.log(chosen["price"].to_numpy()) - low) / (high - low) - 1
        return bench.Records(inputs, torch.from_numpy(targets).float())


def packaged_table(package: str, file: str, content_hash: str, unhashed: int = 0) -> "tuple[list[bytes], pd.DataFrame]":
    """Return digests of a packaged table's rows, sorted, and the rows that they are of.

    Args:
        package: the package whose file it is.
        file: the path in the package, of a CSV file with a heading.
        content_hash: of the lines in the order of their digests.
        unhashed: the number of last columns that are left out of a row's digest.

    Raises:
        DataError: if the package is missing, or ships other records than those known here.
    """
    import pandas as pd

    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise bench.errors.DataError(f"{file} is of the package {package}: pip install 'dphpo-bench[tables]'.")
    lines = (Path(spec.origin).parent / file).read_text(encoding="utf-8").splitlines()
    rows = sorted((hashlib.sha256(line.rsplit(",", unhashed)[0].encode()).digest(), line) for line in lines[1:])
    text = "\n".join([lines[0], *(line for _, line in rows)])
    if hashlib.sha256(text.encode()).hexdigest() != content_hash:
        raise bench.errors.DataError(
            f"The installed {package} ships another {file} than expected. Install another version of it, "
            "such as comes with 'dphpo-bench[tables]' in a new environment."
        )
    return [digest for digest, _ in rows], pd.read_csv(StringIO(text))
