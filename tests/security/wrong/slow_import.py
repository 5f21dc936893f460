"""A method whose module imports what it should import when it runs."""

from dataclasses import dataclass

import numpy as np

from tests.security.wrong.methods import Sound


@dataclass(frozen=True)
class ImportsNumpy(Sound):
    factor: float = float(np.sqrt(2.0))
