from loadtest.lab.findings import MEASURES, RANKED_BY
from loadtest.lab.report import tables


def test_goodput_is_compared_by_the_second_too():
    named = {one.name: one for one in MEASURES}
    assert named["goodput_per_s"].higher_is_better and named["goodput_share"].higher_is_better
    assert [one.name for one in RANKED_BY] == ["ttft_mean_ms", "goodput_per_s"]


def test_differing_times_and_placements_are_reported_separately():
    names = [one.name for one in MEASURES]
    assert names[: tables.TIMES][-1] == "e2e_mean_ms" and names[tables.TIMES :][0] == "hit_share"
