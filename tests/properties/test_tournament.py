"""The tournament against min() of a list."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.authority import Tournament

values = st.integers(MIN_TIMESTAMP, MAX_TIMESTAMP)


@given(st.data())
def test_its_minimum_is_that_of_its_values(data):
    size = data.draw(st.integers(0, 200))
    expected = [data.draw(values)] * size
    tournament = Tournament(size, initial=expected[0] if expected else 0)
    for _ in range(data.draw(st.integers(1, 6))):
        places = data.draw(st.lists(st.sampled_from(range(size)), unique=True)) if size else []
        if data.draw(st.booleans()):
            places = list(range(size))
        new = [data.draw(values) for _ in places]
        tournament.update(places, new)
        for place, value in zip(places, new, strict=True):
            expected[place] = value

        assert tournament.minimum == min(expected, default=MAX_TIMESTAMP)
