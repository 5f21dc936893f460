"""Text for outputs that cannot hold all of it."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.base.progress import encodable, write_replacements

ENCODINGS = ("ascii", "latin-1", "cp1252", "cp437", "cp932", "utf-8", "utf-16")


@given(text=st.text(), encoding=st.sampled_from(ENCODINGS))
def test_any_text_is_written_line_by_line(text: str, encoding: str) -> None:
    written = encodable(text, encoding)
    assert len(written.split("\n")) == len(text.split("\n"))
    for before, after in zip(text.split("\n"), written.split("\n"), strict=True):
        if encodable(before, encoding) == before:
            assert after == before


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        ("ε ≤ 3, δ = 1e-5: 0.9 ± 0.1 × 2", "ascii", "eps <= 3, delta = 1e-5: 0.9 +/- 0.1 x 2"),
        ("ε ≤ 3, δ = 1e-5: 0.9 ± 0.1 × 2", "cp1252", "eps <= 3, delta = 1e-5: 0.9 ± 0.1 × 2"),
        ("Łódź, café – naïve…", "ascii", "?odz, cafe - naive..."),
        ("日本 😀 \udcff", "latin-1", "?? ? ?"),
        ("plain", None, "plain"),
        ("\udcff ε", None, "? ε"),
    ],
)
def test_what_stands_for_letters(text: str, encoding: str | None, expected: str) -> None:
    assert encodable(text, encoding) == expected


def test_streams_that_cannot_change_stay() -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="ascii", errors="strict")
    write_replacements(stream, io.StringIO(), None)
    stream.write("δ")
    stream.flush()
    assert buffer.getvalue() == b"delta"
