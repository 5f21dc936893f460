"""A fixed vocabulary: what is in it is a token, what is not is spelled, and text comes back as people write it."""

import pytest

from dphpo_bench.data.words import UNKNOWN, Vocabulary, plain

WORDS = Vocabulary(("<end>", "<name>"), ("the", "pub", "is", "family", "friendly", "it", "s", "20", "25", "the"))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The pub.", ["the", "pub", "."]),
        ("Zizzi", ["z", "##i", "##z", "##z", "##i"]),
        ("<name> is <nowhere>", ["<name>", "is", UNKNOWN]),
        ("It’s £20-25", ["it", "'", "s", "£", "20", "-", "25"]),
        ("café 漢", ["c", "##a", "##f", "##e", UNKNOWN]),
        ("<end", [UNKNOWN, "e", "##n", "##d"]),
        ("", []),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert [WORDS.tokens[index] for index in WORDS.encode(text)] == tokens


@pytest.mark.parametrize(
    "text",
    [
        "the pub is family-friendly.",
        "it's £20-25 (is it?): 3/5; 100% vegan!",
        "<name>'s pub",
    ],
)
def test_text_comes_back(text: str) -> None:
    assert WORDS.decode(WORDS.encode(text)) == text


def test_symbols_are_first_and_no_token_occurs_twice() -> None:
    assert (WORDS.ids["<end>"], WORDS.ids["<name>"], WORDS.ids[UNKNOWN]) == (0, 1, 2)
    assert len(set(WORDS.tokens)) == len(WORDS.tokens) == len(WORDS.ids)
    assert plain("“Ångström” – ½") == '"angstrom" - 1⁄2'
