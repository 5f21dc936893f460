"""A fixed vocabulary of words. It is written down beforehand, so it says nothing about the records.

Text becomes lower case without accents. A word that is not in the vocabulary is spelled, letter by letter.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

UNKNOWN = "<unknown>"
"""Stands for a character that the vocabulary lacks."""

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_MARKS = "'-.,!?:;()%/\"&$£"
_NO_SPACE_BEFORE = frozenset("'-.,!?:;)%/")
_NO_SPACE_AFTER = frozenset("'-(/$£")
_STRAIGHT = str.maketrans("‘’‛´`“”–—", "'''''\"\"--")
_INSIDE = "##"


@dataclass(frozen=True)
class Vocabulary:
    """Words and the tokens that stand for them.

    Attributes:
        symbols: tokens that are no words, such as that of a text's end: `<...>` of small letters where text may hold
            them. They are first, so their index here is their id.
        words: of small letters and digits; one that occurs twice counts once.
    """

    symbols: tuple[str, ...]
    words: tuple[str, ...]

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """All tokens; the index of each is its id."""
        inside = (f"{_INSIDE}{letter}" for letter in _LETTERS)
        return tuple(dict.fromkeys((*self.symbols, UNKNOWN, *_MARKS, *_LETTERS, *inside, *self.words)))

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each token."""
        return {token: index for index, token in enumerate(self.tokens)}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        pieces: list[str] = []
        for piece in re.findall(r"<[a-z]+>|[a-z0-9]+|\S", plain(text)):
            if piece in self.ids or len(piece) == 1 or piece[0] == "<":
                pieces.append(piece)
            else:
                pieces += [piece[0], *(f"{_INSIDE}{letter}" for letter in piece[1:])]
        return [self.ids.get(token, self.ids[UNKNOWN]) for token in pieces]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens, with spaces as people set them."""
        text = ""
        glued = True
        for token in (self.tokens[index] for index in ids):
            inside = token.startswith(_INSIDE)
            text += ("" if glued or inside or token in _NO_SPACE_BEFORE else " ") + token.removeprefix(_INSIDE)
            glued = token in _NO_SPACE_AFTER
        return text


def plain(text: str) -> str:
    """Return a text in lower case without accents, and with straight quotes and hyphens."""
    parts = unicodedata.normalize("NFKD", text.translate(_STRAIGHT))
    return "".join(part for part in parts if not unicodedata.combining(part)).lower()
