"""The rounds of `dp_fedavg` by Flower's simulation, without noise: the weights are the same up to rounding.

    pip install "flwr[simulation]" && python -m research.flower [--rounds 3] [--clients 250]

Flower clips by its own `DifferentialPrivacyServerSideFixedClipping`, at noise 0. All clients take part in each round:
Flower divides by the number of clients that took part, dphpo-bench by the expected one.
"""

import argparse

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch import nn

import dphpo_bench as bench
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.units import Units

STEPS, RATE, CLIP = 5, 0.1, 0.3
TASK = bench.make_task("digits_by_writer")
RECORDS = TASK.load_train(bench.DataSource.resolve())


def initial() -> nn.Module:
    """Return the model with weights that are not zero."""
    torch.manual_seed(0)
    model = TASK.build_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.1)
    return model


def arrays(model: nn.Module) -> list[np.ndarray]:
    return [weight.detach().numpy().copy() for weight in model.parameters()]


class Writer(NumPyClient):
    """A client of Flower: plain steps of torch's SGD."""

    def __init__(self, number: int) -> None:
        rows = RECORDS.units == number
        self.inputs, self.targets = RECORDS.inputs[rows], RECORDS.targets[rows]

    def fit(self, parameters, config):
        torch.set_num_threads(1)
        model = TASK.build_model()
        for weight, value in zip(model.parameters(), parameters, strict=True):
            weight.data = torch.tensor(value)
        optimizer = torch.optim.SGD(model.parameters(), RATE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(self.inputs), self.targets).backward()
            optimizer.step()
        return arrays(model), 1, {}  # of equal weight


def by_flower(rounds: int, clients: int) -> list[np.ndarray]:
    """Return the weights after the last round of Flower's simulation."""
    seen: list[list[np.ndarray]] = []

    class Kept(FedAvg):
        def aggregate_fit(self, server_round, results, failures):
            aggregated = super().aggregate_fit(server_round, results, failures)
            seen.append(parameters_to_ndarrays(aggregated[0]))
            return aggregated

    def client(context: Context):
        return Writer(int(context.node_config["partition-id"])).to_client()

    def server(context: Context) -> ServerAppComponents:
        plain = Kept(
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=ndarrays_to_parameters(arrays(initial())),
        )
        # The paper's threshold is of w_E - w, ours of the mean gradient.
        clipped = DifferentialPrivacyServerSideFixedClipping(plain, 0.0, STEPS * RATE * CLIP, clients)
        return ServerAppComponents(strategy=clipped, config=ServerConfig(num_rounds=rounds))

    resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 1}}
    run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=client), clients, backend_config=resources)
    assert len(seen) == rounds
    return seen[-1]


def by_engine(rounds: int, clients: int) -> list[np.ndarray]:
    """Return the weights after as many rounds of a server that averages, by the engine of `Batch.gradient`."""
    model, units = initial(), Units.of(RECORDS.units).some(torch.arange(clients))
    engine = gradient_engine(model)
    for _ in range(rounds):
        clipping = bench.clipping.Abadi(CLIP)
        sums = engine.clipped_update_sum(RECORDS.inputs, RECORDS.targets, clipping, units, (STEPS, RATE))
        with torch.no_grad():
            for weight, total in zip(model.parameters(), sums, strict=True):
                weight -= STEPS * RATE * total / clients
    return arrays(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=250)
    asked = parser.parse_args()
    ours, theirs = (run(asked.rounds, asked.clients) for run in (by_engine, by_flower))
    moved = max(float(abs(a - b).max()) for a, b in zip(ours, arrays(initial()), strict=True))
    apart = max(float(abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
    print(f"{asked.clients} clients, {asked.rounds} rounds: weights moved by {moved:.3g}, and differ by {apart:.2g}.")


if __name__ == "__main__":
    main()
