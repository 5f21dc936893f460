"""Built-in tasks: what they declare without data, and what the real files hold (marked real_data)."""

import hashlib
import itertools
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_diabetes

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.metrics import R2
from dphpo_bench.contract.task import Task
from dphpo_bench.data.images import canonical_order, content_hash, decode, load_records
from dphpo_bench.data.rows import load_rows
from dphpo_bench.data.source import DataSource, download_command, weights_folder
from dphpo_bench.tasks import diamonds
from dphpo_bench.tasks.adult import ENCODING, Adult, AdultFew
from dphpo_bench.tasks.cifar10 import Cifar10
from dphpo_bench.tasks.cifar100 import Cifar100
from dphpo_bench.tasks.clients import DigitsByWriter, ReadmissionsByHospital, hospital_stays
from dphpo_bench.tasks.diabetes import Diabetes
from dphpo_bench.tasks.diamonds import Diamonds
from dphpo_bench.tasks.digits import Digits
from dphpo_bench.tasks.digits_eight import DigitsEight
from dphpo_bench.tasks.fashion_mnist import FashionMnist
from dphpo_bench.tasks.food101 import Food101
from dphpo_bench.tasks.gtsrb import Gtsrb
from dphpo_bench.tasks.mnist import Mnist
from dphpo_bench.tasks.mnli import Mnli
from dphpo_bench.tasks.persons import Reviews, Stays
from dphpo_bench.tasks.qnli import Qnli
from dphpo_bench.tasks.qqp import Qqp
from dphpo_bench.tasks.readmissions import COLUMNS, N_TEST, N_TRAIN, Readmissions, stays
from dphpo_bench.tasks.sst2 import Sst2
from dphpo_bench.tasks.svhn import Svhn
from dphpo_bench.tasks.synthetic import Synthetic
from dphpo_bench.tasks.untouched import Affairs, Friedman, Housing, Marriages, Patches, RareClass, Shells, Visits
from dphpo_bench.testing import TaskContract
from dphpo_bench.zoo.dataset_task import TUNED_VITS, ImageTask, TextTask
from dphpo_bench.zoo.published import ROBERTA, ROBERTAS
from tests.touched import module, quick, skeleton, touched

IMAGE_TASKS = (Cifar10, FashionMnist, Mnist)
GLUE = (Mnli, Qnli, Qqp)
OF_THE_HUB = (Cifar100, Food101, Gtsrb, *GLUE, Svhn)  # most mirrors lack them
WITH_DATA = (Adult, AdultFew, *IMAGE_TASKS, Sst2, *OF_THE_HUB)
# Tried on tiny networks in tests/recipes: the real ones need gigabytes, or weights that no package has.
FINE_TUNED = ("block", "bitfit", "lora", "gru", *TUNED_VITS, *ROBERTAS)

PACKAGED = (
    *(Digits("mlp"), Diabetes(), DigitsEight(), Readmissions("mlp")),
    *(Synthetic(), Digits("mlp").sibling, DigitsEight().sibling, Diabetes().sibling),
    *(Marriages(), Affairs("mlp"), Friedman("mlp"), Patches(), DigitsByWriter("mlp"), ReadmissionsByHospital()),
    *(Stays("mlp"), Reviews()),
)

NEED_NO_DATA = (
    "test_declarations",
    "test_facts_are_public",
    "test_initial_weights_follow_the_seed",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the contract its tasks: one of each skeleton and those that the change touches, or all."""
    changed = touched("tasks")
    if metafunc.cls is TestPackagedTasksContract:
        params = [quick(metafunc.config, task, module(task) in {*changed, "digits"}) for task in PACKAGED]
        metafunc.parametrize("task", params, ids=lambda task: f"{task.name}-{task.model_name}")
    if metafunc.function.__name__ == "test_what_of_the_contract_needs_no_data":
        chosen = {skeleton(task, "dphpo_bench.tasks"): task for task in reversed(WITH_DATA)}.values()
        params = [quick(metafunc.config, task, task in chosen or module(task) in changed) for task in WITH_DATA]
        metafunc.parametrize("task_class", params)


class TestPackagedTasksContract(TaskContract):
    @pytest.mark.slow  # by frozen fingerprints, too
    def test_fingerprint_is_stable(self, task: Task) -> None:
        super().test_fingerprint_is_stable(task)


@pytest.mark.slow
@pytest.mark.real_data
class TestContractOnRealData(TaskContract):
    @pytest.fixture(
        params=[(cls, model) for cls in WITH_DATA for model in cls.models if model not in FINE_TUNED],
        ids=lambda p: p[0].name + "-" + p[1],
    )
    def task(self, request: pytest.FixtureRequest) -> Task:
        if not os.environ.get("DPHPO_BENCH_DATA"):
            pytest.skip("set DPHPO_BENCH_DATA to a mirror of the datasets")
        task_class, model = request.param
        task: Task = task_class(model)
        skip_if_missing(task)
        return task


def skip_if_missing(task: Task) -> None:
    """Skip the test if this machine lacks what the task reads."""
    source = DataSource.resolve()
    try:
        missing = [one.name for one in task.datasets if not all(source.find(one, split) for split in one.published)]
        for weights in () if missing else task.pretrained_models:
            weights_folder(source, weights)
    except DataError as error:
        pytest.skip(str(error))
    if missing:
        pytest.skip(f"the mirror has no {missing[0]}")


@pytest.mark.parametrize("test", NEED_NO_DATA)
def test_what_of_the_contract_needs_no_data(task_class: type[Task], test: str) -> None:
    for model in task_class.models:
        if model not in FINE_TUNED:
            getattr(TaskContract(), test)(task_class(model))


def test_names_and_facts_of_all_tasks_import_nothing_slow() -> None:
    """In one process for all of them; `dphpo-bench list` asks for no more."""
    slow = {"torch", "torchvision", "numpy", "scipy", "sklearn", "pandas", "pyarrow", "optuna", "transformers"}
    script = (
        "import sys; from importlib.metadata import entry_points; found = entry_points(group='dphpo_bench.tasks');"
        "[point.load()().facts for point in found if point.dist.name == 'dphpo-bench'];"
        f"print(sorted({slow} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class TestOfTheHub:
    """Tasks whose files nobody here has."""

    def test_how_to_get_them(self) -> None:
        assert download_command(Gtsrb.datasets[0], "M") == (
            "hf download tanganke/gtsrb data/train-00000-of-00001.parquet data/test-00000-of-00001.parquet "
            "--repo-type dataset --revision ea889fff70dda7b09e94a4b207dded438deca549 --local-dir M/gtsrb"
        )
        assert download_command(Svhn.datasets[0], "M") == (
            "curl --fail --location --create-dirs --output-dir M/svhn "
            "-O http://ufldl.stanford.edu/housenumbers/train_32x32.mat "
            "-O http://ufldl.stanford.edu/housenumbers/test_32x32.mat"
        )
        assert download_command(Mnli.datasets[0], "M") == (
            "hf download nyu-mll/glue mnli/train-00000-of-00001.parquet "
            "mnli/validation_matched-00000-of-00001.parquet mnli/validation_mismatched-00000-of-00001.parquet "
            "--repo-type dataset --revision bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c --local-dir M/mnli"
        )
        assert Food101.datasets[0].train.paths[7] == "data/train-00007-of-00008.parquet"
        assert Food101.datasets[0].test.paths[2] == "data/validation-00002-of-00003.parquet"

    @pytest.mark.parametrize("task_class", [Mnli, Sst2])
    def test_planning_needs_neither_records_nor_weights(
        self, task_class: type[ImageTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DPHPO_BENCH_DATA", str(tmp_path / "none"))
        monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "cache"))
        structures = set()
        for model in task_class.models:
            task = task_class(model)
            structures.add(task.model_fingerprint())
        assert len(structures) == len(task_class.models)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("task_class", [Gtsrb, Mnli, Svhn])
    def test_a_mirror_without_them_is_one_line_with_the_way(self, task_class: type[Task], tmp_path: Path) -> None:
        with pytest.raises(DataError) as error:
            task_class(task_class.models[-1]).prepare(DataSource.resolve(tmp_path, tmp_path / "cache"))
        dataset = task_class.datasets[0]
        assert f"Expected dataset {dataset.name} at {tmp_path}" in str(error.value)
        assert f"`{download_command(dataset, str(tmp_path))}`" in str(error.value)
        assert "\n" not in str(error.value)
        assert list(tmp_path.iterdir()) == []


class TestDigits:
    @pytest.fixture
    def source(self, tmp_path: Path) -> DataSource:
        return DataSource.resolve(cache_dir=tmp_path)

    def test_every_record_is_in_one_split(self, source: DataSource) -> None:
        from sklearn.datasets import load_digits

        bunch = load_digits()
        wanted = sorted((*image, label) for image, label in zip(bunch.data.tolist(), bunch.target, strict=True))
        task = Digits()
        splits = (task.load_train(source), task.load_test(source))
        inputs = torch.cat([split.inputs for split in splits]).mul(8).add(8).tolist()
        labels = torch.cat([split.targets for split in splits]).tolist()
        assert sorted((*image, label) for image, label in zip(inputs, labels, strict=True)) == wanted


@pytest.fixture(scope="module")
def real_source(tmp_path_factory: pytest.TempPathFactory) -> DataSource:
    if not os.environ.get("DPHPO_BENCH_DATA"):
        pytest.skip("set DPHPO_BENCH_DATA to a mirror of the datasets")
    return DataSource.resolve(cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.mark.real_data
@pytest.mark.parametrize("split_name", [pytest.param("train", marks=pytest.mark.slow), "test"])
@pytest.mark.parametrize("task_class", IMAGE_TASKS)
def test_real_files_hold_the_pinned_records(
    task_class: type[ImageTask], split_name: str, real_source: DataSource
) -> None:
    dataset = task_class.datasets[0]
    split = dataset.train if split_name == "train" else dataset.test
    records = load_records(real_source, dataset, split)  # checks the content hash
    assert len(records) == split.rows
    assert content_hash(records) == split.content_hash
    if task_class is not Mnist:
        assert np.bincount(records["label"]).tolist() == [split.rows // 10] * 10


@pytest.mark.real_data
def test_real_sst2_holds_the_pinned_records(real_source: DataSource) -> None:
    for split, positive in zip(Sst2.datasets[0].splits, (37_569, 444), strict=True):
        rows = load_rows(real_source, Sst2.datasets[0], split)  # checks the content hash
        assert sum(int(row[-1]) for row in rows) == positive


@pytest.mark.slow
@pytest.mark.real_data
def test_real_cifar10_has_the_published_moments(real_source: DataSource) -> None:
    """Channel means and deviations of the training set, as widely published to four digits."""
    dataset = Cifar10.datasets[0]
    pixels = load_records(real_source, dataset, dataset.train)["pixels"]
    share = np.stack([np.bincount(pixels[:, c].ravel(), minlength=256) for c in range(3)]) / pixels[:, 0].size
    levels = np.arange(256) / 255
    mean = share @ levels
    np.testing.assert_allclose(mean, [0.4914, 0.4822, 0.4465], atol=5e-5)
    np.testing.assert_allclose(np.sqrt(share @ levels**2 - mean**2), [0.2470, 0.2435, 0.2616], atol=5e-5)


CANONICAL_MNIST = {
    "train": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "test": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


@pytest.mark.real_data
@pytest.mark.slow
def test_real_mnist_is_the_original_byte_for_byte(real_source: DataSource) -> None:
    """SHA-256 of the four original IDX files, rebuilt; the mirror keeps the original order."""
    dataset = Mnist.datasets[0]
    for split in dataset.splits:
        records = np.concatenate(list(decode(real_source.files(dataset, split), dataset, split, real_source)))
        images = struct.pack(">4i", 0x803, split.rows, 28, 28) + records["pixels"].tobytes()
        labels = struct.pack(">2i", 0x801, split.rows) + records["label"].tobytes()
        found = tuple(hashlib.sha256(content).hexdigest() for content in (images, labels))
        assert found == CANONICAL_MNIST[split.name]
        assert content_hash(canonical_order(records)) == split.content_hash


class TestGlue:
    @pytest.mark.parametrize("task_class", GLUE)
    def test_the_default_model_has_seen_the_records_and_says_so(self, task_class: type[TextTask]) -> None:
        assert task_class().facts.model == "linear"
        (weights,) = task_class().pretrained_models
        assert task_class.name in weights.has_seen
        assert task_class.name not in ROBERTA.has_seen


class TestDigitsEight:
    def test_one_record_in_ten_is_an_eight(self, tmp_path: Path) -> None:
        source = DataSource.resolve(cache_dir=tmp_path)
        ours, digits = DigitsEight(), Digits()
        for split in ("load_train", "load_test"):
            records, all_of_them = getattr(ours, split)(source), getattr(digits, split)(source)
            assert torch.equal(records.inputs, all_of_them.inputs)
            assert torch.equal(records.targets, (all_of_them.targets == 8).float())
            assert 0.05 < records.targets.mean() < 0.15

    def test_it_is_ranked_by_what_a_constant_does_not_win(self) -> None:
        auc, *_, accuracy = DigitsEight().metrics
        targets = torch.tensor([1.0] + 9 * [0.0])
        assert (auc.name, accuracy.name) == ("roc_auc", "accuracy")
        assert auc.of(torch.full((10, 1), -9.0), targets) == 0.5
        assert accuracy.of(torch.full((10, 1), -9.0), targets) == 0.9


class TestSynthetic:
    def test_records_stay(self, tmp_path: Path) -> None:
        """Up to rounding: the generator's integers and normal numbers are exact, sums of them are not."""
        records = Synthetic("teacher_300").load_train(DataSource.resolve(cache_dir=tmp_path))
        seen = (*records.inputs[0, :2].tolist(), float(records.targets.double().mean()))
        assert seen == pytest.approx((-0.338312, -0.149733, 1.553333), rel=1e-4)

    def test_least_squares_explains_of_the_rule_what_noise_leaves(self, tmp_path: Path) -> None:
        task, source = Synthetic("rule_10000"), DataSource.resolve(cache_dir=tmp_path)
        (x, y), (held_out, targets) = ((r.inputs, r.targets) for r in (task.load_train(source), task.load_test(source)))
        weights = torch.linalg.lstsq(x, y[:, None]).solution
        assert 1 - (targets - (held_out @ weights)[:, 0]).var() / targets.var() == pytest.approx(0.77, abs=0.01)
        assert task.metrics[0] is R2

    def test_a_rare_class_is_rare_and_a_target_of_the_order_of_its_bound(self) -> None:
        assert DigitsEight().sibling.draw.records("test").targets.mean() == pytest.approx(0.1, abs=0.03)
        assert 0.2 < Diabetes().sibling.draw.records("test").targets.std() < 2


class TestDiabetes:
    def test_records_are_scaled_by_public_constants(self, tmp_path: Path) -> None:
        source = DataSource.resolve(cache_dir=tmp_path)
        train, test = Diabetes().load_train(source), Diabetes().load_test(source)
        assert (len(train), len(test)) == (345, 97)
        targets = torch.cat([train.targets, test.targets])
        assert (targets.min(), targets.max()) == (-1, 1)  # the documented range, which both ends reach
        original = load_diabetes(scaled=False)
        ages = sorted((torch.cat([train.inputs, test.inputs])[:, 0] * 15 + 50).round().tolist())
        assert ages == sorted(original.data[:, 0].tolist())

    def test_other_packaged_records_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        original = load_diabetes(scaled=False)
        original.target[7] += 1
        monkeypatch.setattr("sklearn.datasets.load_diabetes", lambda **_: original)
        with pytest.raises(DataError, match="another diabetes dataset"):
            Diabetes().load_train(DataSource.resolve(cache_dir=tmp_path))


class TestDiamonds:
    def test_records_are_those_of_the_package_in_two_parts(self, tmp_path: Path) -> None:
        """Quantities of the public table, counted by others: 53,940 stones, 21,551 of them of the best cut."""
        source = DataSource.resolve(cache_dir=tmp_path)
        train, test = Diamonds().load_train(source), Diamonds().load_test(source)
        assert (len(train), len(test)) == (diamonds.N_TRAIN, 53_940 - diamonds.N_TRAIN)
        targets, inputs = torch.cat([train.targets, test.targets]), torch.cat([train.inputs, test.inputs])
        assert (targets.min(), targets.max()) == (-1, 1)  # the documented range, which both ends reach
        assert inputs[:, 7].sum() == 21_551
        carats = torch.exp(inputs[:, 0].double() * 0.6 - 0.3)
        assert (carats.min(), carats.max()) == pytest.approx((0.2, 5.01), rel=1e-6)
        prices = torch.exp((targets.double() + 1) / 2 * math.log(18_823 / 326)) * 326
        assert prices.mean() == pytest.approx(3932.8, rel=1e-4)

    def test_other_records_and_a_missing_package_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(diamonds, "CONTENT_HASH", "0" * 64)
        source = DataSource.resolve(cache_dir=tmp_path)
        with pytest.raises(DataError, match=r"ships another data/diamonds.csv than expected"):
            Diamonds().load_train(source)
        monkeypatch.setattr(diamonds, "find_spec", lambda _: None)
        with pytest.raises(DataError, match=r"pip install 'dphpo-bench\[tables\]'"):
            Diamonds().load_train(source)


class TestUntouched:
    """Counts of the public tables, by others; and that a drawn task is what its rule says."""

    @staticmethod
    def both(task: Task, tmp_path: Path) -> tuple[Records, Records]:
        source = DataSource.resolve(cache_dir=tmp_path)
        return task.load_train(source), task.load_test(source)

    def test_tables_are_those_of_the_packages(self, tmp_path: Path) -> None:
        """6,366 wives, 2,053 of them with an affair; 57,752 visits; 7,986 known prices."""
        affairs, visits, housing = (self.both(task(), tmp_path) for task in (Affairs, Visits, Housing))
        assert sum(map(len, affairs)) == 6_366
        assert sum(int(part.targets.sum()) for part in affairs) == 2_053
        shares = sum(float((part.targets.double() + 1).sum()) for part in visits) / 2
        assert 77 * shares == pytest.approx(57_752, abs=0.01)
        assert sum(map(len, housing)) == 7_986
        assert sum(int(part.inputs[:, -1].sum()) for part in housing) == 860  # months with a price and no inventory

    def test_a_patch_is_a_piece_of_its_photo(self, tmp_path: Path) -> None:
        from sklearn.datasets import load_sample_images

        photos = load_sample_images().images
        train, test = self.both(Patches(), tmp_path)
        assert (len(train), len(test)) == (6_784, 1_696)
        pixels = test.inputs[0].add(1).mul(127.5).round().byte().numpy().reshape(8, 8, 3)
        photo = photos[int(test.targets[0])]
        corners = itertools.product(range(0, 424, 8), range(0, 640, 8))
        assert any((photo[row : row + 8, column : column + 8] == pixels).all() for row, column in corners)

    def test_the_rule_draws_both_parts(self, tmp_path: Path) -> None:
        """A positive in fifty; least squares explain what Friedman's rule has of a line; no line tells shells apart."""
        rare, shells = (self.both(task(), tmp_path) for task in (RareClass, Shells))
        assert [float(part.targets.float().mean()) for part in rare] == pytest.approx([0.02, 0.02], abs=0.003)
        centres = torch.stack([shells[0].inputs[shells[0].targets == label].mean(0) for label in range(4)])
        assert centres.norm(dim=1).max() < 0.15
        train, test = self.both(Friedman(), tmp_path)
        line = torch.linalg.lstsq(train.inputs, train.targets[:, None] - train.targets.mean()).solution
        assert R2.of(test.inputs @ line + train.targets.mean(), test.targets[:, None]) == pytest.approx(0.72, abs=0.03)


class TestReadmissions:
    def test_the_table_has_gaps_dates_and_a_rare_class(self) -> None:
        frame = pd.DataFrame(stays())
        gaps = frame.isna().mean()
        assert sorted(gaps[gaps > 0].index) == ["age", "crp", "haemoglobin", "insurance", "last visit"]
        assert 0.06 < frame["readmitted"].mean() < 0.08
        assert 0.02 < (~frame["ward"].isin(COLUMNS["ward"].values)).mean() < 0.04  # type: ignore[union-attr]

    def test_the_task_encodes_the_table_as_it_declares(self, tmp_path: Path) -> None:
        task, source = Readmissions(), DataSource.resolve(cache_dir=tmp_path)
        train, test = task.load_train(source), task.load_test(source)
        assert (len(train), len(test)) == (N_TRAIN, N_TEST)
        frame = pd.DataFrame(stays())
        assert task.columns is not None
        inputs = task.columns.encode(frame.drop(columns="readmitted").sample(frac=1, axis=1, random_state=0))
        assert torch.equal(torch.cat([train.inputs, test.inputs]), inputs)
        assert torch.equal(torch.cat([train.targets, test.targets]) == 1, torch.tensor(frame["readmitted"].to_numpy()))

    def test_other_records_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dphpo_bench.tasks.readmissions.N_TRAIN", N_TRAIN + 1)
        with pytest.raises(DataError, match="draws other readmissions"):
            Readmissions().load_train(DataSource.resolve(cache_dir=tmp_path))


class TestPersons:
    @pytest.mark.parametrize(("task", "most", "share"), [(Stays(), 12, 0.55), (Reviews(), 60, 0.6)])
    def test_records_of_a_person_are_alike_and_few_persons_have_many(
        self, task: Task, most: int, share: float, tmp_path: Path
    ) -> None:
        source = DataSource.resolve(cache_dir=tmp_path)
        train, test = task.load_train(source), task.load_test(source)
        assert (train.n_units, test.units) == (task.facts.n_records, None)
        assert train.units is not None
        sizes = train.units.bincount()
        assert (int(sizes.min()), int(sizes.max())) == (1, most)
        assert (sizes <= 2).float().mean() > share
        pairs = (train.units[1:] == train.units[:-1]).nonzero().squeeze(1)  # a record and the next of the same person
        of_person, of_others = (float((train.targets[pairs] == other[pairs + 1]).float().mean())
                                for other in (train.targets, train.targets.roll(1_000)))  # fmt: skip
        assert of_person > of_others + 0.05

    def test_other_records_are_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Reviews, "content_hash", "0" * 64)
        with pytest.raises(DataError, match="draws other reviews"):
            Reviews().load_train(DataSource.resolve(cache_dir=tmp_path))


class TestAdult:
    @pytest.mark.real_data
    def test_real_files_hold_what_is_published(self, real_source: DataSource) -> None:
        """Becker and Kohavi's own counts: 7,841 and 3,846 above 50,000 dollars."""
        task = Adult()
        train, test = task.load_train(real_source), task.load_test(real_source)
        assert (train.targets.sum(), test.targets.sum()) == (7841, 3846)
        assert train.inputs.shape == (32_561, *task.facts.inputs.shape)
        assert test.inputs.abs().max() <= 5

    @pytest.mark.real_data
    def test_gains_and_losses_as_they_are_stand_beside_their_logarithms(self, real_source: DataSource) -> None:
        without, both = (Adult(model).load_test(real_source).inputs for model in ("linear", "linear_both"))
        assert torch.equal(both[:, :-2], without)
        gain, loss = (list(Adult().columns).index(f"capital-{name}") for name in ("gain", "loss"))
        first = [sum(c.size for c in list(Adult().columns.values())[:place] if c is not None) for place in (gain, loss)]
        logarithms = torch.log1p(both[:, -2:].double() * torch.tensor([10_000, 1_000])) / 8
        assert torch.allclose(logarithms, without[:, first].double(), atol=1e-5)
        assert both[:, -2].max() == pytest.approx(9.9999)  # the census's top code

    def test_the_number_of_an_education_says_no_more_than_its_name(self) -> None:
        assert ENCODING["education-num"] is None
        assert ENCODING["education"].size == 16


class TestClients:
    def test_a_writer_depends_on_the_picture_alone(self, tmp_path: Path) -> None:
        """The records are those of `digits`; a writer has two digits, and there are all of them."""
        source = DataSource.resolve(cache_dir=tmp_path)
        records, pictures = DigitsByWriter().load_train(source), Digits().load_train(source)
        assert torch.equal(records.inputs, pictures.inputs)
        assert records.units is not None
        assert records.units.unique().tolist() == list(range(250))
        assert torch.equal(records.units // 50, records.targets // 2)
        assert DigitsByWriter().load_test(source).units is None

    def test_hospitals_differ_and_those_of_the_test_are_others(self, tmp_path: Path) -> None:
        source = DataSource.resolve(cache_dir=tmp_path)
        train, test = ReadmissionsByHospital().load_train(source), ReadmissionsByHospital().load_test(source)
        rows = hospital_stays()
        assert (len(train), len(test), train.n_units) == (8_125, 3_900, 1_000)
        assert {row["hospital"] for row in rows} == set(range(1_500))
        _, sizes = torch.unique(train.units, return_counts=True)
        assert (sizes.min(), sizes.max()) == (1, 15)
        assert 0.06 < train.targets.mean() < 0.08

    def test_other_hospitals_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dphpo_bench.tasks.clients.N_HOSPITALS", 999)
        with pytest.raises(DataError, match="draws other hospitals"):
            hospital_stays()
