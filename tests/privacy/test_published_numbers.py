"""Numbers that the four papers print and that need no data; `research/four_papers.md` names their places.

Totals of linear scaling's Table 11 and HyFreeDP's noise are in `reference_values.csv`.
"""

import math
from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import DpEvent
from scipy.stats import norm

import dphpo_bench as bench
from dphpo_bench.methods.dp_hyper import DpHyper
from dphpo_bench.methods.linear_scaling import LinearScaling, on_line
from dphpo_bench.privacy.accountants.report import epsilon
from dphpo_bench.privacy.events import compose, gaussian, poisson_sampled, repeat
from dphpo_bench.training.optimizers import UpdateRule
from research.figures import RESOLUTIONS, by_rdp, clipping_bias, doublings, hyfreedp_event, search, simulated
from tests.privacy.test_reference_values import mu_of

DELTA = 1e-5
FACTS = bench.TaskFacts(
    "table", "none", 50_000, bench.recipes.Input((1,)), 1000, 10, "SGD", learning_rate=1.0, n_classes=2
)


class TestHyFreeDP:
    """Liu and Bu 2025."""

    @pytest.mark.parametrize("bound", [0.0, 1.0, 2.0, 3.5])
    def test_clipping_bias_of_a_gaussian_loss(self, bound: float) -> None:
        """Corollary 1: ξ (φ(α) − α (1 − Φ(α))), α = (R − μ) / ξ. Figure 7 draws it; at α = 0 it is .399."""
        mean, spread, n = 1.5, 0.8, 200_000
        losses = mean + spread * norm.ppf((np.arange(n) + 0.5) / n)
        alpha = (bound - mean) / spread
        printed = spread * clipping_bias(alpha)
        assert losses.mean() - np.minimum(losses, bound).mean() == pytest.approx(printed, abs=1e-4)
        assert clipping_bias(0) == pytest.approx(0.399, abs=1e-3)

    @pytest.mark.parametrize(
        ("claimed", "interval", "sigma", "loss_noise", "true"),
        [(1, 5, 2.0232, 8.98, 0.914), (3, 5, 1.0219, 2.558, 3.033), (8, 5, 0.6893, 1.124, 12.3)],
    )
    def test_epsilon_as_published(
        self, claimed: float, interval: int, sigma: float, loss_noise: float, true: float
    ) -> None:
        """Section 4.2: calibrated by RDP, at γ = 1.01 and N = 50,000, B = 1,000, T = 500, as if samples were separate.

        RDP has slack, which hides the missing part at ε = 1 and most of it at 3.
        """
        case = {"N": 50_000, "B": 1000, "T": 500, "K": interval, "sigma_g": 1.01 * sigma, "sigma_l": loss_noise}
        assert epsilon(hyfreedp_event(case, joint=False), DELTA, accountant="rdp").epsilon == pytest.approx(
            claimed, rel=3e-3
        )
        assert epsilon(hyfreedp_event(case, joint=True), DELTA, coarseness=4).epsilon == pytest.approx(true, rel=3e-3)

    @pytest.mark.slow
    def test_the_final_run_of_dp_hyper_has_85_percent_of_epsilon(self) -> None:
        """Section 5; the paper does not say what the other 15 % pay for, and its Table 8 has about 20 %."""
        plan = DpHyper().plan(FACTS, bench.PrivacyBudget(1, DELTA))
        assert epsilon(plan.training_event, DELTA, coarseness=4).epsilon == pytest.approx(0.85, rel=2e-3)


class TestLinearScaling:
    """Panda et al. 2024."""

    def test_a_row_of_table_11(self) -> None:
        """3 runs at .05, 3 at .2 and a final run at .9 are printed under a budget of 1."""
        parts = [repeat(gaussian(1 / mu_of(value, DELTA)), n) for n, value in ((3, 0.05), (3, 0.2), (1, 0.9))]
        assert epsilon(compose(*parts), DELTA).epsilon == pytest.approx(0.9972, abs=1e-4)

    @pytest.mark.parametrize(("sigma", "rate", "steps", "ratio"), [(2561, 1.0, 100, 20), (1145, 0.2, 500, 8.7)])
    def test_noise_at_epsilon_of_a_hundredth(self, sigma: float, rate: float, steps: int, ratio: float) -> None:
        """A.3: full batch and q = .2, 100 epochs, "ε = .01". Both have .0095 at δ = 1e-5, .01 at δ = 6.5e-6."""
        event: DpEvent = repeat(poisson_sampled(rate, gaussian(sigma)), steps)
        assert epsilon(event, DELTA).by_accountant["pld"] == pytest.approx(0.00946, rel=2e-3)
        assert rate * 50_000 / sigma == pytest.approx(ratio, rel=0.03)

    @pytest.mark.parametrize(
        ("points", "final", "total", "printed"),
        [
            # Table 6, GLUE.
            (((0.1, 0.975), (0.2, 1.95)), 0.52, 0.7, 5.07),
            (((0.1, 3.9), (0.2, 4.68)), 3.0, 1.3, 26.52),
            (((0.1, 11.7), (0.2, 17.55)), 1.0, 1.2, 64.35),
            # Table 8, WikiText-2 and Enron.
            (((0.2, 0.008), (0.5, 0.02)), 1.0, 1.4, 0.04),
            (((0.2, 0.008), (0.5, 0.02)), 2.0, 2.2, 0.08),
            (((0.2, 0.008), (0.5, 0.02)), 3.0, 3.0, 0.12),
            (((0.1, 0.10), (0.2, 0.58)), 0.5, 0.7, 2.02),
            (((0.1, 0.10), (0.2, 0.58)), 1.0, 1.1, 4.41),
            (((0.1, 0.10), (0.2, 0.58)), 2.0, 1.9, 9.19),
            (((0.1, 0.10), (0.2, 0.58)), 3.0, 2.7, 13.98),
        ],
    )
    def test_r_on_the_line(
        self, points: Sequence[tuple[float, float]], final: float, total: float, printed: float
    ) -> None:
        """The printed r is the line's at an ε of .5 to 3. Four times the printed total does not exceed that ε."""
        assert on_line(points, final, (1e-3, 1e3)) == pytest.approx(printed, rel=5e-3)
        below = (final, total) in {(3.0, 1.3), (3.0, 3.0), (2.0, 1.9), (3.0, 2.7)}
        assert (total <= final) == below

    def test_seven_runs(self) -> None:
        """Table 16: three runs, three and one."""
        assert LinearScaling().plan(FACTS, bench.PrivacyBudget(1, DELTA)).cost.runs == 7

    def test_rdp_gives_away_a_tenth_of_a_full_batch_run(self) -> None:
        """Table 1 compares PLD with RDP: a run that RDP calls .1 is .0896, and one that it calls 1 is .915."""
        assert [by_rdp(0.1), by_rdp(1.0)] == pytest.approx([0.0896, 0.915], abs=1e-3)

    @pytest.mark.parametrize("rate", [0.02, 0.1, 0.18])
    def test_noise_moves_gradient_descent_no_further_than_theorem_3_1_says(self, rate: float) -> None:
        """E ‖w_T − w_T,b‖ ≤ ρη Σ cⁱ, on a quadratic; where c = 1 − ηα, long runs meet ρ/α, from which η is gone."""
        curvatures, sigma, steps = np.linspace(1, 10, 20), 0.7, 400
        contraction = np.abs(1 - rate * curvatures)
        moved = sigma * rate * math.sqrt((contraction[:, None] ** (2 * np.arange(steps))).sum())
        rho, c = math.sqrt(len(curvatures)) * sigma, contraction.max()
        bound = rho * rate * (1 - c**steps) / (1 - c)
        assert moved <= bound
        if rate < 2 / 11:
            assert bound == pytest.approx(rho / curvatures.min(), rel=1e-3)


class TestProposeTest:
    """Ding and Wu 2022, Algorithm 1 in its simulation: k = 10, ε₀ = .1, g = .01, 100 uniform utilities."""

    def test_it_takes_seven_rounds_and_chooses_at_random(self) -> None:
        """Figure 1. The noise on a utility in [0, 1] has scale 4: the search ends at u = 1.27, whatever is true."""
        generator = np.random.default_rng(0)
        searches, chosen, best = zip(*(simulated(1, 0.01, generator) for _ in range(1000)), strict=True)
        assert np.mean([len(result.path) for result in searches]) == pytest.approx(7.0, abs=0.05)
        assert np.mean(chosen) == pytest.approx(0.52, abs=0.03)
        assert np.mean(best) == pytest.approx(0.99, abs=0.005)

    def test_rounds_by_resolution(self) -> None:
        """Figure 2: nearly log₂ of 1/g. Where each round succeeds, it is ⌈log₂(1/g + 1)⌉ on no data at all."""
        for g in RESOLUTIONS:
            assert len(search(lambda _: 0, g).path) == doublings(g)

    def test_the_worst_case(self) -> None:
        """Section 2, sequence 2: success, failure, success, ... gains g every two rounds: 199, and ε = 6.48."""
        answers = cycle([0, None])
        assert len(search(lambda _: next(answers), 0.01).path) == 199


class TestAutomaticClipping:
    """Bu et al. 2023."""

    @staticmethod
    def path(optimizer: str, scale: float, rate: float, **options: object) -> torch.Tensor:
        """Return the weights after steps along gradients of this scale."""
        generator = torch.Generator().manual_seed(0)
        weights = torch.ones(6, dtype=torch.float64)
        rule = UpdateRule(optimizer, [weights], options)
        for _ in range(20):
            gradient = torch.randn(6, generator=generator, dtype=torch.float64) + weights
            rule.apply(rule.direction([scale * gradient]), rate)
        return weights

    @pytest.mark.parametrize("threshold", [0.1, 7.0])
    @pytest.mark.parametrize("options", [{"momentum": 0.0}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
    def test_theorem_1(self, threshold: float, options: dict[str, object]) -> None:
        """Without adaptation a threshold R is a rate of ηR and a weight decay of λ/R."""
        with_r = self.path("SGD", threshold, 0.02, weight_decay=0.3, **options)
        assert with_r.allclose(self.path("SGD", 1.0, 0.02 * threshold, weight_decay=0.3 / threshold, **options))

    @pytest.mark.parametrize("threshold", [0.1, 7.0])
    @pytest.mark.parametrize("optimizer", ["Adagrad", "Adam", "Adamax", "NAdam", "RMSprop", "AdamW"])
    def test_theorem_2(self, threshold: float, optimizer: str) -> None:
        """With it R cancels: the same η, and λ/R, or λ where the decay is decoupled. Exact without Adam's constant."""
        decay = 0.3 if optimizer == "AdamW" else 0.3 / threshold
        with_r = self.path(optimizer, threshold, 0.02, weight_decay=0.3, eps=0.0)
        assert with_r.allclose(self.path(optimizer, 1.0, 0.02, weight_decay=decay, eps=0.0))

    def test_theorem_2_names_an_optimizer_for_which_it_fails(self) -> None:
        """RAdam's first five steps are not adaptive, and grow with R."""
        one_threshold = self.path("RAdam", 7.0, 0.02, eps=0.0)
        assert not one_threshold.allclose(self.path("RAdam", 1.0, 0.02, eps=0.0), rtol=0.1)

    @pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0])
    def test_epsilon_of_mu(self, mu: float) -> None:
        """Section 5.2: μ-GDP implies ε = μ² + μ √(2 ln 1/δ). A bound, and not a tight one."""
        exact = epsilon(gaussian(1 / mu), DELTA).epsilon
        assert 0.6 * (printed := mu**2 + mu * math.sqrt(2 * math.log(1 / DELTA))) < exact < printed
