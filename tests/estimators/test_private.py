"""Estimators with scikit-learn's conventions: its own checks, and what privacy adds to them."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.harness.journal import Journal

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(80, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")
FAST: dict[str, Any] = {
    "epsilon": 8,
    "delta": 1e-3,
    "method": "dp_sgd",
    "epochs": 5,
    "optimizer": "SGD",
    "learning_rate": 1.0,
    "seed": 0,
    "device": "cpu",
}
# At ε = 8 a check that looks at predictions fails at one seed of twelve. This much ε leaves no noise to speak of.
SURE = {**FAST, "epsilon": 1e4}
PRIVATE = {**FAST, "classes": ("no", "yes"), "seed": None}

_OTHERS = "Classes are declared, since y is private: other labels are refused."
_ALL = "Outputs are of all declared classes, since y is private: not of those that it happens to have."
EXPECTED = {
    "check_dtype_object": _OTHERS,
    "check_classifiers_classes": _OTHERS,
    "check_classifiers_train": _ALL,
}
"""Checks of scikit-learn that privacy forbids to pass, by name, of a classifier with declared classes."""


def expected_failures(estimator: Any) -> dict[str, str]:
    return EXPECTED if getattr(estimator, "classes", None) else {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@parametrize_with_checks(
    [
        bench.PrivateClassifier(**FAST, public=True),
        bench.PrivateClassifier(**SURE, classes=(0, 1, 2)),
        bench.PrivateRegressor(**SURE, target_scale=(0, 1)),
    ],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_checks_of_scikit_learn(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "nonce", lambda _: 0)  # else no fit on private records repeats another
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        bench.PrivateClassifier(epsilon=8, delta=1e-3, seed=0, public=True),
        bench.PrivateRegressor(epsilon=8, delta=1e-3, seed=0, public=True),
    ]
)
def test_checks_of_scikit_learn_with_a_method_that_tunes(estimator: Any, check: Any) -> None:
    check(estimator)


def classifier(**changes: Any) -> bench.PrivateClassifier:
    return bench.PrivateClassifier(**{**FAST, "public": True, **changes})


def test_a_fit_is_a_run(tmp_path: Path) -> None:
    model = classifier().fit(X, Y)
    assert model.predict(X[:3]).tolist() == model.trained_.predict(X[:3]).tolist()
    assert model.score(X, Y) > 0.9
    assert model.classes_.tolist() == ["no", "yes"]
    assert (model.record_.identity.method, model.record_.identity.task) == ("dp_sgd", "estimator")
    assert model.epsilon_ == model.record_.privacy.epsilon <= 8
    assert np.array_equal(model.predict_proba(X), classifier().fit(X, Y).predict_proba(X))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))
    back = bench.load_model(model.save(tmp_path / "m.safetensors"))
    assert np.array_equal(back.predict_proba(X), model.predict_proba(X))
    assert classifier(delta=None).fit(X, Y).record_.identity.delta == pytest.approx(1e-3)  # the most that boards take


@pytest.mark.parametrize(
    ("changes", "y", "message"),
    [
        ({"epsilon": None}, Y, "Expected epsilon=, such as epsilon=3"),
        ({"public": False}, Y, r"Expected classes=, such as classes=\(\"no\", \"yes\"\), of private records"),
        ({}, np.zeros(80), "Expected at least two classes in y, got 1 class"),
        ({"network": "deep"}, Y, r"Expected network to be \"linear\", widths of hidden layers"),
        ({"network": (0,)}, Y, "Expected a whole width in network from 1 to"),
        ({"unit": "patient"}, Y, "Expected a frame with the column unit='patient', got none"),
        ({"threshold": 1.5}, Y, "Expected 0 < threshold < 1, got threshold=1.5"),
        ({"threshold": 0.5, "classes": ("no", "yes", "?")}, Y, "Expected two classes with a threshold, got 3"),
    ],
)
def test_mistakes_get_one_clear_line(changes: dict[str, Any], y: Any, message: str) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message) as caught:
        classifier(**changes).fit(X, y)
    assert "\n" not in str(caught.value)


def test_labels_in_another_order_than_the_records_are_refused() -> None:
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    with pytest.raises(InvalidValueError, match="got the same index in several orders"):
        bench.PrivateClassifier(**PRIVATE).fit(frame[::-1], pandas.Series(Y))


def test_classes_of_private_records_are_declared_or_booleans() -> None:
    with pytest.warns(UserWarning, match="no account counts this run"):
        model = classifier(public=False, seed=None).fit(X, Y == "yes")
    assert model.classes_.tolist() == [False, True]
    assert model.predict(X).dtype == bool
    with pytest.warns(UserWarning, match="no account counts this run"):
        model = bench.PrivateClassifier(**PRIVATE | {"classes": ("yes", "no", "?")}).fit(X, Y)
    assert model.classes_.tolist() == ["yes", "no", "?"]
    assert model.predict_proba(X).shape == (80, 3)
    assert model.score(X, Y) > 0.8


def test_classes_keep_their_declared_order(tmp_path: Path) -> None:
    answers = np.where(X[:, 0] > 0, "ja", "nein")
    model = classifier(classes=("nein", "ja")).fit(X, answers)
    chances = model.predict_proba(X)
    assert model.classes_.tolist() == ["nein", "ja"]
    assert roc_auc_score(answers == "ja", chances[:, 1]) > 0.9
    back = bench.load_model(model.save(tmp_path / "m.safetensors"))
    assert (back.classes, back.predict(X).tolist()) == (("nein", "ja"), model.predict(X).tolist())
    with pytest.warns(UserWarning, match=r"takes classes as sorted, and classes=\('nein', 'ja'\) are not"):
        clone(model)  # scikit-learn's tools clone: their scorers would exchange the columns
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(classifier(classes=("ja", "nein")))


def test_rare_classes_are_declared_as_of_a_task(tmp_path: Path) -> None:
    declared: dict[str, Any] = {"class_shares": (0.9, 0.1), "class_weights": "balanced", "threshold": 0.2}
    model = classifier(classes=("no", "yes"), metrics=(bench.metrics.ROC_AUC,), **declared).fit(X, Y)
    facts = model.record_.identity.facts
    assert (facts["class_shares"], facts["class_weights"]) == ([0.9, 0.1], "balanced")
    assert facts["metrics"][0]["name"] == "roc_auc"
    expected = np.where(model.predict_proba(X)[:, 1] >= 0.2, "yes", "no")
    assert model.predict(X).tolist() == expected.tolist()
    back = bench.load_model(model.save(tmp_path / "m.safetensors"))
    assert back.predict(X).tolist() == expected.tolist()
    assert (model.predict(X) == "yes").sum() > (classifier(classes=("no", "yes")).fit(X, Y).predict(X) == "yes").sum()


def test_predictions_of_a_single_class_are_remarked_on() -> None:
    model = classifier(threshold=1e-300).fit(X, Y)
    with pytest.warns(UserWarning, match="All 80 predictions are 'yes': a constant guess, of balanced accuracy 0.500"):
        model.predict(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X[:9])
        classifier().fit(X, Y).predict(X)


@pytest.mark.parametrize(
    "ensemble",
    [
        lambda part: BaggingClassifier(part, n_estimators=2, bootstrap=False),
        OneVsRestClassifier,
    ],
)
def test_parts_of_ensembles_have_numbers_as_classes(ensemble: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"number the labels of y from 0: declare classes=range\(2\)"):
        ensemble(classifier(classes=("no", "yes"))).fit(X, Y)
    assert ensemble(classifier(classes=range(2))).fit(X, Y).score(X, Y) > 0.9


@pytest.mark.parametrize(
    ("network", "layers"),
    [
        ("linear", ["Linear"]),
        ([8, 4], ["Linear", "Tanh", "Linear", "Tanh", "Linear"]),
        (nn.Sequential(nn.Linear(3, 2), nn.Identity()), ["Linear", "Identity"]),
    ],
)
def test_networks(network: Any, layers: list[str]) -> None:
    trained = classifier(network=network).fit(X, Y).trained_.network
    assert [type(layer).__name__ for layer in trained.modules() if type(layer) is not nn.Sequential] == layers


def test_a_table_is_encoded_inside() -> None:
    frame = pandas.DataFrame({"x": X[:, 0], "job": np.where(X[:, 1] > 0, "cook", "clerk")})
    frame.loc[::9, "x"] = np.nan
    columns = bench.Columns({"x": bench.Number(0, 1, missing="typical"), "job": bench.Category(("cook", "clerk"))})
    model = classifier(columns=columns).fit(frame, Y)
    assert model.score(frame[["job", "x"]], Y) > 0.8
    assert (model.n_features_in_, model.feature_names_in_.tolist()) == (2, ["x", "job"])
    assert model.trained_.columns == columns
    assert clone(model).get_params()["columns"] == columns
    with pytest.raises(DataError, match="lacks job"):
        model.predict(frame[["x"]])


def test_persons_are_protected_with_all_their_records(tmp_path: Path) -> None:
    frame = pandas.DataFrame(X, columns=list("abc")).assign(patient=np.arange(80) // 2)
    model = classifier(unit="patient").fit(frame, Y)
    facts = model.record_.identity.facts
    assert (facts["n_records"], facts["unit"], model.n_features_in_) == (40, "patient", 3)
    assert np.array_equal(model.predict_proba(frame), model.predict_proba(frame.drop(columns="patient")))
    arrow = pyarrow.Table.from_pandas(frame)
    assert np.array_equal(classifier(unit="patient").fit(arrow, Y).predict_proba(arrow), model.predict_proba(frame))
    back = bench.load_model(model.save(tmp_path / "numbers.safetensors"))  # it ignores the columns of ids and answers
    assert np.array_equal(back.predict_proba(frame.assign(answer=Y)), model.predict_proba(frame))
    model = classifier(unit="patient", columns=dict.fromkeys("abc", bench.Number(0, 1)))
    for table in (frame.to_dict("list"), frame.to_dict("records"), arrow):
        assert model.fit(table, Y).record_.identity.facts["n_records"] == 40
        assert (model.feature_names_in_.tolist(), len(model.predict(table))) == (list("abc"), 80)
    model.fit(frame, pandas.Series(Y, name="answer"))
    back = bench.load_model(model.save(tmp_path / "table.safetensors"))
    assert np.array_equal(back.predict_proba(frame.assign(answer=Y)), model.predict_proba(frame))


def test_an_account_counts_each_fit(tmp_path: Path) -> None:
    model = bench.PrivateClassifier(**PRIVATE, results_dir=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, Y)
    once = bench.account(tmp_path)
    with pytest.warns(UserWarning, match="Fit 2 of this estimator and its clones on private records"):
        clone(model).fit(X, Y)
    assert len(list(tmp_path.rglob("*.json"))) == 2
    assert str(bench.account(tmp_path)) != str(once)
    with (
        pytest.warns(UserWarning, match="Fit 3 of this"),
        pytest.raises(DataError, match="Give the task another version, or name another folder"),
    ):
        model.fit(X + 1, Y)  # other records under one name, as folds of a cross-validation are


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_records_that_a_tool_draws_twice_are_warned_of() -> None:
    ensemble = BaggingClassifier(bench.PrivateClassifier(**PRIVATE | {"classes": (0, 1)}), 1, random_state=0)
    with pytest.warns(UserWarning, match="Many records have equal copies, as where BaggingClassifier draws"):
        ensemble.fit(X, Y)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("declared", [{}, {"public": True}, {"seed": 0}])
def test_folds_are_runs_of_their_own(declared: dict[str, Any], tmp_path: Path) -> None:
    model = bench.PrivateClassifier(**{**PRIVATE, **declared}, results_dir=tmp_path)
    assert np.isfinite(cross_val_score(model, X, Y, cv=4, n_jobs=2 if "seed" in declared else None)).all()
    assert len(list(tmp_path.rglob("*.json"))) == 4
    if "public" not in declared:
        report = bench.account(tmp_path)
        assert len(report.releases) == 4
        assert report.changed
        assert (report.totals[0].together or 0) > 2 * 8  # all four together, as if each had all records
        assert len({read.identity.data_fingerprint for read in map(bench.read_record, tmp_path.rglob("*.json"))}) == 4


def test_a_search_in_several_processes_warns() -> None:
    search = GridSearchCV(bench.PrivateClassifier(**PRIVATE), {"learning_rate": [1.0]}, cv=2, n_jobs=2)
    with pytest.warns(UserWarning, match="Clone 2 of this estimator, for fits on private records: each is a release"):
        search.fit(X, Y)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_search_over_private_records_warns() -> None:
    model = bench.PrivateClassifier(**PRIVATE)
    with pytest.warns(UserWarning, match="No ε covers what GridSearchCV"):
        cross_val_score(model, X, Y, cv=2)
    with pytest.warns(UserWarning, match="Fit 5 of this"):
        GridSearchCV(bench.PrivateClassifier(**PRIVATE), {"learning_rate": [0.1, 1.0]}, cv=2).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cross_val_score(classifier(), X, Y, cv=2)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_regressor_predicts_in_the_units_of_its_targets(tmp_path: Path) -> None:
    inputs = np.tile(X, (20, 1))
    prices = 3e5 + 1e5 * inputs[:, 0]
    declared = bench.PrivateRegressor(**FAST, target_scale=(3e5, 1e5)).fit(inputs, prices)
    for model in (declared, bench.PrivateRegressor(**FAST, public=True).fit(inputs, prices)):
        assert model.score(inputs, prices) > 0.7
    back = bench.load_model(declared.save(tmp_path / "m.safetensors"))
    assert np.array_equal(back.predict(X), declared.predict(X))
    assert declared.record_.identity.facts["error_bound"] == 2e5
    with pytest.raises(InvalidValueError, match=r"Expected target_scale=\(typical, spread\) of private records"):
        bench.PrivateRegressor(**FAST).fit(inputs, prices)
    for other in (prices.astype(str), pandas.to_datetime(prices)):
        with pytest.raises(InvalidValueError, match="Expected numbers as labels of train"):
            bench.PrivateRegressor(**FAST, public=True).fit(inputs, other)
    with pytest.raises(InvalidValueError, match="within 2\\^20 spreads of 0"):
        bench.PrivateRegressor(**FAST, public=True).fit(inputs, 1e9 + inputs[:, 0])
    constant = pandas.Series(1e7, index=range(5, 5 + len(prices)))
    table: dict[str, Any] = {"columns": {str(place): bench.Number(0, 1) for place in range(X.shape[1])}}
    for options in ({}, table):
        model = bench.PrivateRegressor(**FAST, **options, public=True).fit(inputs, constant)
        assert np.abs(model.predict(X) / 1e7 - 1).max() < 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_schema_learns_nothing_from_the_records_of_a_private_fit() -> None:
    model = classifier(public=False, classes=("no", "yes"), columns=dict.fromkeys("abc", bench.Number(0, 1)))
    for table in (pandas.DataFrame(X, columns=list("abc")), dict(zip("abc", X.T.copy(), strict=True))):
        model.fit(table, Y)
        with pytest.raises(InvalidValueError, match="release that no budget pays for"):
            bench.schema(table)


def test_without_a_seed_no_two_fits_are_the_same() -> None:
    """So scikit-learn's checks that compare two fits are for seeded estimators."""
    first, second = (classifier(seed=None).fit(X, Y).predict_proba(X) for _ in range(2))
    assert not np.array_equal(first, second)
