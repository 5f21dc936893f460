"""Text on outputs that cannot hold all of it, such as a file on Windows: written with replacements, never refused."""

import codecs
import unicodedata
from functools import partial
from typing import Any

_IN_ASCII = {
    **{
        "ε": "eps",
        "δ": "delta",
        "σ": "sigma",
        "η": "eta",
        "γ": "gamma",
        "α": "alpha",
        "μ": "mu",
        "µ": "mu",
        "κ": "kappa",
    },
    **{"θ": "theta", "ρ": "rho", "λ": "lambda", "β": "beta", "Δ": "Delta", "Σ": "Sum", "Π": "Prod"},
    **{"−": "-", "–": "-", "—": "-", "×": "x", "·": "*", "±": "+/-", "≤": "<=", "≥": ">=", "≈": "~", "∝": "~"},
    **{
        "√": "sqrt ",
        "∞": "inf",
        "→": "->",
        "←": "<-",
        "↦": "->",
        "…": "...",
        "‖": "||",
        "✓": "+",
        "✗": "x",
        "†": "+",
        "‡": "++",
    },
    **{"‘": "'", "’": "'", "“": '"', "”": '"', "‹": "<", "›": ">", "⟨": "<", "⟩": ">", "•": "*", "█": "#", "░": "."},
}


def write_replacements(*streams: Any) -> None:
    """Let text streams write replacements of what their encoding lacks; others, as of tests, stay as they are."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_handler(stream.encoding))


def encodable(text: str, encoding: str | None) -> str:
    """Return the text with replacements of what an encoding lacks; None is UTF-8."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, _handler(encoding)).decode(encoding)


def _handler(encoding: str) -> str:
    """Return the name of the error handler for an encoding, whose errors may not name it."""
    name = f"dphpo_bench.{codecs.lookup(encoding).name}"
    codecs.register_error(name, partial(_replacing, encoding))
    return name


def _replacing(encoding: str, error: UnicodeError) -> tuple[str, int]:
    """Replace letters in the rest of a line, and leave out as many spaces of the next gap, so that columns stay."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    if encoding.lower().startswith("utf"):  # lacks halves of surrogate pairs only, as in names of files
        return "?" * (error.end - error.start), error.end
    end = error.object.find("\n", error.start)
    parts: list[str] = []
    surplus = 0
    for letter in error.object[error.start : None if end < 0 else end]:
        if letter == " " and surplus and parts and parts[-1] == " ":
            surplus -= 1
            continue
        parts.append(_in(letter, encoding))
        surplus += len(parts[-1]) - 1
    return "".join(parts), len(error.object) if end < 0 else end


def _in(letter: str, encoding: str) -> str:
    """Return a letter, or what stands for it in an encoding."""
    plain = unicodedata.normalize("NFKD", letter)
    bare = "".join(part for part in plain if not unicodedata.combining(part))
    name = unicodedata.name(letter, "")
    drawn = "-" if name.endswith("HORIZONTAL") else "|" if name.endswith("VERTICAL") else "+"
    dots = " " if letter == "\u2800" else ":"
    guess = drawn if name.startswith("BOX DRAWINGS") else dots if name.startswith("BRAILLE") else "?"
    for candidate in (letter, _IN_ASCII.get(letter, bare), "".join(_IN_ASCII.get(part, part) for part in bare), guess):
        try:
            candidate.encode(encoding)
        except UnicodeEncodeError:
            continue
        return candidate
    return "?"
