"""HyFreeDP with a rule of ours: the rate whose noise the weights tolerate, and a scale of the last layer."""

from dataclasses import dataclass

from .noise_scaled import NoiseScaled


@dataclass(frozen=True)
class HyFreeDP(NoiseScaled):
    """Training without a learning rate or a clipping threshold to choose; the idea is that of Liu and Bu 2025.

    Like theirs, it releases a few privatised losses, and its learning rate follows from them. The queries and the rule
    are ours; their rule is `hyfreedp_paper`.

    - Before the first step, eight queries to one batch find the rate, as in `noise_scaled`.
    - After the last step, eight queries to one batch find a scale of the last layer, unless the task is a regression:
      temperature scaling (Guo et al. 2017), because normalised gradients let margins grow without end.

    Released are gradients, T × Poisson(q; Gaussian σ), and queries: Poisson(p; 8 × Gaussian σ_p) first, seven shares of
    records and a matrix, and Poisson(p; 8 × Gaussian σ_p) last, as clipped sums of changes of the loss. They are
    calibrated as one event. σ_p follows from `share` and public numbers.

    The parameters are those of `NoiseScaled`.
    """

    name = "hyfreedp"
    version = 13
    summary = "DP-SGD at the rate whose noise the weights tolerate; then scales the last layer. The rule is ours."
    reference = "after Liu and Bu 2025 (arXiv:2503.00703), Towards hyperparameter-free optimization with DP"
    tuning = ("learning rate", "clipping threshold")
    end_to_end_private = True
    scaled = True
