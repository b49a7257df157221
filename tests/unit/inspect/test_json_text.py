"""Keys and values as text: one printable line, and for a key one that finds it again."""

import json
from typing import Any

import pytest

from millrace.inspect import as_json, key_text, keys_of
from millrace.model.keys import encode_key

NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "key",
    [
        NAN,
        INFINITY,
        -INFINITY,
        -0.0,
        1e300,
        ("ann", NAN),
        ((-INFINITY, None),),
        "NaN",
        "-Infinity",
        ("NaN", True, b"\0"),
        ("\x9b31m", "\u2028"),
        "\U000e0001",
    ],
)
def test_the_text_of_a_key_is_printable_and_means_that_key(key: Any) -> None:
    text = key_text(key)

    assert text.isprintable()
    assert encode_key(key) in map(encode_key, keys_of(text))


@pytest.mark.parametrize(
    "text", ["\x9b31m", "\x7f", "a\u2028b", "\u202eabc", "\U000e0001", "é\x85"]
)
def test_json_has_no_character_that_a_terminal_or_a_reader_of_lines_obeys(text: str) -> None:
    written = as_json({"cell": [text]}).decode()

    assert written.isprintable()
    assert json.loads(written) == {"cell": [text]}
