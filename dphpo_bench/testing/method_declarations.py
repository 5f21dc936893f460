"""Tests of a method's declarations and of its source."""

import ast
import inspect
import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

from dphpo_bench.contract.method import Method
from dphpo_bench.testing.expectations import (
    ContractError,
    expect,
    expect_line,
    expect_name_and_version,
    shortened,
)
from dphpo_bench.testing.new_process import ask_new_process, expect_cheap

PUBLIC = ("_asdict", "_fields", "_field_defaults", "_make", "_replace")
"""Names of named tuples that begin with an underscore and are meant for others."""

DECLARED = ("name", "version", "summary", "reference", "tuning", "end_to_end_private")


class MethodDeclarations:
    """Tests of declarations, a part of `MethodContract`: nothing is planned or run."""

    def test_declarations(self, method: Method) -> None:
        """Name, version, summary, reference, tuning and end_to_end_private are declared."""
        cls = type(method)
        for name in DECLARED:
            expect(hasattr(cls, name), f"{cls.__name__} has no class attribute {name}. Set it, as Method explains.")
        for name in ("name", "summary", "reference"):
            expect_line(name, getattr(cls, name))
        expect_name_and_version(cls, "--method")
        ok = isinstance(cls.tuning, tuple) and all(isinstance(name, str) for name in cls.tuning)
        expect(ok, f"Expected tuning to be a tuple of names of hyperparameters, got {shortened(cls.tuning)}.")
        expect(
            isinstance(cls.end_to_end_private, bool),
            f"Expected end_to_end_private to be True or False, got {shortened(cls.end_to_end_private)}.",
        )

    def test_parameters_are_fields_of_a_frozen_dataclass(self, method: Method) -> None:
        """The parameters are the fields of a frozen dataclass, each with a default."""
        cls = type(method)
        way_out = "Decorate the class with @dataclass(frozen=True)."
        expect(is_dataclass(cls), f"{cls.__name__} is no dataclass, so its parameters are not known. {way_out}")
        expect(
            cls.__dataclass_params__.frozen,  # type: ignore[attr-defined]
            f"{cls.__name__} is a dataclass that is not frozen: a run could change its own identity. {way_out}",
        )
        parameters = fields(cls)  # type: ignore[arg-type]
        declared = sorted(set(DECLARED) & {field.name for field in parameters})
        expect(
            not declared,
            f"{', '.join(declared)} of {cls.__name__} are annotated, which makes parameters of them. Leave the "
            "annotations out.",
        )
        annotated = vars(cls).get("__annotations__", {})
        named = {name for name, kind in annotated.items() if "ClassVar" not in str(kind)} - set(DECLARED)
        lost = sorted(named - {field.name for field in parameters})
        expect(not lost, f"{', '.join(lost)} of {cls.__name__} are annotated but no fields. {way_out}")
        for field in parameters:
            has_default = field.default is not MISSING or field.default_factory is not MISSING
            expect(
                has_default or not field.init,
                f"The parameter {field.name} has no default, so the method cannot be made from its name alone. Give "
                "it the paper's value.",
            )

    def test_parameters_come_back_from_json(self, method: Method) -> None:
        """The parameters are JSON values, and the same method can be made from them."""
        from dphpo_bench.contract.registry import read_parameters

        try:
            text = json.dumps(method.parameters, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"Expected parameters that JSON holds (numbers, texts, lists, None), got {error}."
            ) from None
        again = type(method)(**read_parameters(type(method), json.loads(text)))
        expect(
            again.parameters == method.parameters,
            f"The parameters {shortened(method.parameters)} come back from a record as {shortened(again.parameters)}. "
            "Do not change a field in __post_init__; compute what follows from it in a property.",
        )

    def test_source_keeps_out_of_the_private_parts_of_others(self, method: Method) -> None:
        """The source uses no attribute that begins with an underscore, but the method's own."""
        uses = _private_names(type(method))
        expect(
            not uses,
            f"{'; '.join(uses)}. Names that begin with an underscore are not for methods: in a session "
            "they hold the private records, their rows and the noise. Use what Session offers without one.",
        )

    def test_importing_the_module_is_cheap(self, method: Method) -> None:
        """Importing the module does not import torch or another slow package."""
        expect_cheap(f"Importing {type(method).__module__} imports", ask_new_process(type(method), "import"))


def _private_names(cls: type) -> list[str]:
    """Return where the module of a class uses names with an underscore that are not its own, as `session._access`.

    Torch counts as its own, since its fused operations begin with an underscore.
    """
    try:
        path = inspect.getsourcefile(cls) or ""
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, TypeError, SyntaxError):
        return []
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)[:100]}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if node.attr not in PUBLIC and ast.unparse(node.value) not in ("self", "cls", "torch", "super()")
    ]
