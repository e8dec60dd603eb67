from hypothesis import given
from hypothesis import strategies as st

from loadtest.plan.hours import by_hour, mean_workers
from loadtest.plan.search import found_each
from loadtest.plan.traffic import Hour, Piece


def hour(place, work_s):
    sample = Piece("", place * 3_600.0, 150.0, 0.0, round(work_s), work_s, work_s / 2)
    return Hour(place * 3_600.0, 3_600.0, round(24 * work_s), 1_000, sample)


def needs(works, workers, of):
    tried = []

    def search(searches):
        def look(counts):
            tried.extend(counts)
            return {place: count >= of(works[place]) for place, count in counts.items()}

        return found_each(searches, look)

    return by_hour([hour(place, work) for place, work in enumerate(works)], workers, search), tried


@given(works=st.lists(st.integers(0, 60), min_size=1, max_size=40), workers=st.integers(1, 5))
def test_each_hour_has_the_workers_of_its_own_search(works, workers):
    found, tried = needs(works, workers, lambda work: 1 + work // 10)
    assert [one.workers for one in found] == [
        (1 + work // 10 if work < 10 * workers else None) if work else 0 for work in works
    ]
    assert {place for place, one in enumerate(found) if one.simulated} == set(tried)


def test_a_day_takes_a_few_hours():
    works = [4 + 26 * (12 - abs(place - 12)) // 12 for place in range(24)]
    found, tried = needs(works, 3, lambda work: 1 + work // 11)
    assert len(tried) <= 14 and sum(one.simulated for one in found) <= 12
    assert mean_workers(found, 3) == sum(1 + work // 11 for work in works) / 24
    assert mean_workers(needs([50], 3, lambda work: 4)[0], 3) == 3.0, "an hour that needs more counts with the most"
