import re

from router.requests.request_ids import RequestIds


def test_ids_are_unique_within_and_between_processes():
    one, other = RequestIds(), RequestIds()
    ids = [ids.of(None) for ids in (one, other) for _ in range(1_000)]
    assert len(set(ids)) == 2_000
    assert all(re.fullmatch(rb"[0-9a-f]{32}", each) for each in ids)
