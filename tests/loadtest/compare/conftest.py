"""A small fleet, and a generator that keeps it busy for seconds."""

import argparse

import pytest

from loadtest.compare import command
from loadtest.compare.settings import first_cell, settled

WORDS = (
    "--trace generator:shared_prefixes:rate_per_s=20,groups=6,low_prefix_tokens=2000,high_prefix_tokens=3000,"
    "answer_p50_tokens=10,answer_p90_tokens=20 --policy lpwl,round_robin --workers 2 --profile llama-3.1-8b-h100"
    " --kv-tokens 40000 --slo 200:50 --window-s 5 --warm-up-s 1"
)


def parsed(*words):
    parser = argparse.ArgumentParser()
    command.register(parser)
    return settled(parser.parse_args(words))


@pytest.fixture
def flags():
    """The command's flags, some of them changed."""
    return lambda *more: parsed(*WORDS.split(), *more)


@pytest.fixture
def cell(flags):
    """Seed 0 of it at the generator's own rate."""
    return first_cell(flags())
