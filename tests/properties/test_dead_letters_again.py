"""Dead letters that are sent again, each once: on both planes, through crashes, by who dies."""

import dead_letters
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=30)
@given(st.integers(0, 1 << 32))
def test_each_trip_counts_once_whatever_fails_and_is_sent_again(seed: int) -> None:
    dead_letters.play(seed)
