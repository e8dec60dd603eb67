"""A profile whose times can be worked out by hand, and sessions made of it."""

from array import array
from dataclasses import replace

import pytest

from backends.engine.profile import DecodeCost, PrefillCost, load_profile
from loadtest.sim.sessions import Session
from loadtest.sim.worker import WorkerSpec
from tests.support.simulated_conversations import Call


@pytest.fixture
def spec():
    """Ten ms for a prefill step and 1 ms per new token; two ms for a decode step. Eight blocks of four tokens."""
    profile = replace(
        load_profile("llama-3.1-8b-h100"),
        block_size=4,
        kv_tokens=36,
        prefill=PrefillCost(a_ms=10.0, b_us=1_000.0, d_ns=0.0),
        decode=DecodeCost(a_ms=2.0, b_ms=0.0, k_ns=0.0),
    )
    return WorkerSpec(profile, jitter=0.0)


@pytest.fixture
def make_call():
    def make(prompt, answer, **fields):
        return Call(array("I", prompt), array("I", answer), **fields)

    return make


@pytest.fixture
def make_session():
    def make(name, *calls, start_s=0.0):
        return Session(name, start_s, calls)

    return make
