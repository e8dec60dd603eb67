"""A made-up recording: what a known profile takes for known requests, as an engine would have reported it."""

import dataclasses
import random

import pytest

from backends.engine.profile import DecodeCost, PrefillCost, load_profile
from loadtest.calibrate.recordings.recording import RecordedRequest, Recording
from loadtest.calibrate.recordings.replay import replay


@pytest.fixture(scope="session")
def profile():
    cost = {"prefill": PrefillCost(9.0, 50.0, 2.0), "decode": DecodeCost(9.0, 0.06, 70.0)}
    return dataclasses.replace(load_profile("llama-3.1-8b-h100"), **cost)


@pytest.fixture(scope="session")
def make_recording(profile):
    """Requests by Poisson arrivals; their times are those of a replay with `profile`."""

    def make(count=150, per_s=10.0, seed=0, max_num_seqs=48):
        rng = random.Random(seed)
        requests, at_s = [], 0.0
        for number in range(count):
            at_s += rng.expovariate(per_s)
            sizes = rng.randint(100, 3_000), rng.randint(100, 400)
            requests.append(RecordedRequest(f"r{number}", *sizes, at_s, at_s, at_s, at_s))
        bare = Recording("some/model", 2_048, max_num_seqs, tuple(requests))
        return dataclasses.replace(bare, requests=replay(bare, profile).requests)

    return make
