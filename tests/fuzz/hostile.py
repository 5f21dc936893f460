"""What strangers may write: valid examples with something changed, and plain rubbish."""

import copy
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dphpo_bench.base.errors import DphpoBenchError

LONGEST_MESSAGE = 1000


def examples(count: int) -> settings:
    """So many examples, the same each time; or `FUZZ_EXAMPLES` of them, others each time (`--timeout 3600`)."""
    wanted = os.environ.get("FUZZ_EXAMPLES")
    return settings(
        max_examples=int(wanted or count),
        derandomize=not wanted,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def check_message(error: DphpoBenchError, *hidden: object, names: object = "") -> None:
    """An error's message is one short line of printable characters.

    Args:
        error: the error.
        hidden: long texts, such as paths, that do not count.
        names: what it must say.
    """
    message = str(error)
    assert str(names) in message
    for text in hidden:
        message = message.replace(str(text), "…")
    assert message.strip()
    assert message.isprintable(), message
    assert len(message) < LONGEST_MESSAGE, message


def accepted(read: Callable[[], Any], *hidden: object) -> Any:
    """What is read, or None if it is refused with a clear error; anything else that is raised is a bug."""
    try:
        return read()
    except DphpoBenchError as error:
        check_message(error, *hidden)
        return None


# ---------------------------------------------------------------------------------------------------- values

NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 10**9, 10**9 + 1, 2**63, 2**64, 10**400, -(10**400)),
    *(-0.0, 0.5, 1.0 - 2**-53, 1.0 + 2**-52, 0.01, 5e-324, 1e-300, 1e-17, 1e154, 1.7976931348623157e308),
    *(float("inf"), float("-inf"), float("nan")),
)
TEXTS: tuple[str, ...] = (
    *("", " ", "1", "true", "NaN", "Infinity", "x" * 5000, "../../../etc/passwd", "9" * 400, "1e400", "[red]x[/]"),
    *("a\nb\r\n\tc", "\x00\x1b[31m", "\u202e\u2028\ufeff\ud7ff", "9999-12-31T23:59:59-23:59"),
)


def _deep(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


CONTAINERS: tuple[Any, ...] = (
    *([], {}, [[]], [None], {"type": "no_op"}, {"name": 1}, {"": {}}, {"type": []}),
    *(_deep(30), _deep(150), [0] * 300, {f"k{number}": number for number in range(300)}),
)
VALUES = st.one_of(
    st.sampled_from((None, True, False)),
    st.sampled_from(NUMBERS),
    st.sampled_from(TEXTS),
    st.sampled_from(CONTAINERS).map(copy.deepcopy),
    st.floats(),
    st.integers(),
    st.text(max_size=20),
)


def places(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*prefix, key)
        yield from places(one, (*prefix, key))


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[Any], changes: int = 3) -> Any:
    """A valid value of JSON's types in which up to `changes` places are something else, gone, doubled or renamed."""
    value = copy.deepcopy(draw(valid))
    for _ in range(draw(st.integers(1, changes))):
        ways = list(places(value))
        if not ways:
            return draw(VALUES)
        *way, last = draw(st.sampled_from(ways))
        parent = value
        for key in way:
            parent = parent[key]
        match draw(st.integers(0, 6)):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[draw(st.one_of(st.sampled_from(TEXTS), st.text(max_size=8), st.sampled_from(list(parent))))] = (
                    copy.deepcopy(parent[last])
                )
            case 2 if isinstance(parent[last], list):
                parent[last] = parent[last] * draw(st.sampled_from((2, 3, 50)))
            case 3 if isinstance(parent[last], int | float) and not isinstance(parent[last], bool):
                parent[last] = draw(st.sampled_from(NUMBERS))
            case 4:  # something that is valid elsewhere
                source: Any = value
                for key in draw(st.sampled_from(ways)):
                    if not (isinstance(source, dict) and key in source):
                        break
                    source = source[key]
                parent[last] = copy.deepcopy(source)
            case _:
                parent[last] = draw(VALUES)
        if len(json.dumps(value)) > 2**20:
            return value
    return value


# ----------------------------------------------------------------------------------------------------- bytes


@st.composite
def torn(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid bytes, cut, with bytes changed, doubled or put in between."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 5)):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + draw(st.integers(1, 50))]
            case 2:
                data[at:at] = draw(st.sampled_from(RUBBISH))
            case 3 if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 4:
                data[at:at] = data[at : at + draw(st.integers(1, 200))]
            case _:
                data[at:at] = draw(st.binary(max_size=8))
    return bytes(data)


RUBBISH: tuple[bytes, ...] = (
    *(b"", b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\\ud800", b"\n", b'"', b"'''"),
    *(b"[" * 5000, b'{"a":' * 5000, b"1" + b"0" * 5000, b"1e999999999", b"NaN", b"null", b"{}", b"[]"),
    *(b"a.b.c=1\n", b"a" * 3000, b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x80\x04\x95"),
)
GARBAGE = st.one_of(st.binary(max_size=300), st.sampled_from(RUBBISH), st.text(max_size=100).map(str.encode))


# ----------------------------------------------------------------------------------------------------- files


@contextmanager
def rights(kind: str) -> Iterator[None]:
    """For what is forbidden, without the rights of the superuser, whom nothing is."""
    if kind != "forbidden" or os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


ODD_FILES = ("directory", "pipe", "loop", "device", "missing", "forbidden", "null")


def odd_file(kind: str, folder: Path, name: str = "odd") -> Path:
    """Something that is not a file to be read."""
    path = folder / name
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "forbidden":
            path.write_bytes(b"{}")
            path.chmod(0)
        case "null":
            return folder / f"{name}\x00"
    return path
