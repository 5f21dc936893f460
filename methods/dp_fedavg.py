"""DP-FedAvg: clients take several steps on their own records, and the server averages their clipped updates."""

from dataclasses import dataclass
from typing import ClassVar

import dphpo_bench as bench

from .dp_sgd import FixedDpSgd


@dataclass(frozen=True)
class DpFedAvg(FixedDpSgd):
    """DP-FedAvg (McMahan, Ramage, Talwar and Zhang 2018, arXiv:1710.06963, Algorithm 1), for tasks with clients.

    In each round a coin takes each client. A client takes E steps of gradient descent on all of its records, from the
    server's weights w to its own, w_E. Its update (w − w_E) / (E · local rate) is clipped as a whole, and the server's
    optimiser takes the noisy mean of updates as a gradient. The privacy event is that of `dp_sgd` on the same units:
    what a client does on its own records costs nothing. At one local step the method is `dp_sgd`.

    The paper clips w_E − w and the server adds the mean. That is a server with SGD without momentum, at the rate
    E · local rate, and a threshold of E · local rate times this one. Its clients have weights by their number of
    records, ours are equal.

    The other parameters are those of `FixedDpSgd`; optimiser, rate and schedule are the server's.

    Attributes:
        local_steps: E, of each client in a round.
        local_rate: of these.
    """

    name = "dp_fedavg"
    summary = "DP-SGD on clipped updates of clients that take several local steps; tunes nothing."
    reference = "McMahan, Ramage, Talwar and Zhang 2018, Learning Differentially Private Recurrent Language Models"
    needs_units = True
    plan_parameters: ClassVar[type] = bench.recipes.FederatedSgd

    local_steps: bench.parameters.Count = 5
    local_rate: bench.parameters.Positive = 0.1

    def training(self, facts: bench.TaskFacts) -> bench.recipes.FederatedSgd:
        """Return the run of `dp_sgd`, with local steps."""
        run = vars(super().training(facts))
        return bench.recipes.FederatedSgd(**run, local_steps=self.local_steps, local_rate=self.local_rate)
