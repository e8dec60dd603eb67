"""``python -m loadtest.peers.choices``: compare the choices of sglang-router and vllm-router with those of our rules.

It starts embedded workers and puts each router from `make peers-env` in front of them. It sends one sequence of prompts
through the router, and holds some open so that loads differ. At every step it asks our rule in the same state.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from loadtest.arguments import positive
from loadtest.fleet.ports import free_ports
from loadtest.peers.choices.drive import run_through
from loadtest.peers.choices.replay import Compared, Knowledge, characters, ours, replay
from loadtest.peers.choices.sequence import Mix, draw
from loadtest.peers.contenders import Site, parse_contender
from loadtest.peers.launch import running_router
from loadtest.peers.workers import FleetShape, empty_caches, running_workers, served_model

SMALL = "--balance-abs-threshold 4 --balance-rel-threshold 1.2"
"""Thresholds low enough for a few held requests to exceed them."""
_SMALL: dict[str, object] = {"balance_abs_threshold": 4, "balance_rel_threshold": 1.2}


@dataclass(frozen=True, slots=True)
class Pair:
    """A router and its policy, our rule for it, and the units in which that rule reads prompts."""

    contender: str
    rule: str
    params: dict[str, object]
    known_by: str


PAIRS = (
    Pair(f"sglang-router:cache_aware {SMALL}", "cache_aware", _SMALL, "characters"),
    Pair(f"sglang-router:cache_aware {SMALL}", "cache_aware", _SMALL, "tokens"),
    Pair(f"vllm-router:cache_aware {SMALL}", "cache_aware", _SMALL, "characters"),
    Pair(f"vllm-router:cache_aware {SMALL}", "cache_aware", _SMALL, "tokens"),
    Pair("vllm-router:kv_aware", "lmetric", {}, "tokens"),
    # For contrast: they show that the sequence distinguishes rules.
    Pair("vllm-router:kv_aware", "lpwl", {}, "tokens"),
    Pair("vllm-router:kv_aware", "dynamo_default", {}, "tokens"),
    Pair("vllm-router:kv_aware", "smg_spill", {}, "tokens"),
)


def compare(pairs: Sequence[Pair], environment: Path, workers: int, mix: Mix, seed: int) -> list[list[Compared]]:
    """Return the compared steps of each pair, in the order of `pairs`. Each router runs once."""
    steps = draw(mix, seed)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmroute-choices-")))
        shape = FleetShape(workers=workers, simulated=True, kv_tokens=1_048_576, time_scale=4.0, seed=seed)
        fleet = stack.enter_context(running_workers(shape, logs))
        model, folder = served_model(fleet[0])
        real: dict[str, list[int]] = {}
        for contender in dict.fromkeys(pair.contender for pair in pairs):
            empty_caches(fleet, model)
            port = free_ports(2)
            site = Site(port, port + 1, fleet, model, environment)
            with running_router(parse_contender(contender), site, logs / "router.log"):
                real[contender] = run_through(site, steps)
    cuts = {"characters": Knowledge(characters, 1), "tokens": _tokens(folder)}
    return [
        replay(ours(pair.rule, pair.params), steps, real[pair.contender], workers, cuts[pair.known_by])
        for pair in pairs
    ]


def _tokens(folder: Path) -> Knowledge:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return Knowledge(lambda prompt: tokenizer.encode(prompt).ids, 16)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; return 0 for any result, because no limit is defined."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.peers.choices", description=__doc__)
    parser.add_argument(
        "--peers-env", type=Path, default=Path(".venv-peers"), help="environment with the peers (default: %(default)s)"
    )
    parser.add_argument("--workers", type=positive, default=4, help="number of workers (default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=Mix().steps, help="requests (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of prompts and holds (default %(default)s)")
    parser.add_argument("--show", type=int, default=3, help="differences to show of each router (default %(default)s)")
    options = parser.parse_args(arguments)
    mix = Mix(steps=options.steps)
    found = compare(PAIRS, options.peers_env.absolute(), options.workers, mix, options.seed)
    for pair, compared in zip(PAIRS, found, strict=True):
        _print(pair, compared, options.show)
    return 0


def _print(pair: Pair, compared: Sequence[Compared], show: int) -> None:
    same = sum(step.same for step in compared)
    acceptable = sum(step.acceptable for step in compared)
    print(f"{pair.contender} and {pair.rule}, prompts known by {pair.known_by}:")
    print(f"  {len(compared)} choices: {same} the same, {acceptable - same} another of equals, ", end="")
    print(f"{len(compared) - acceptable} different")
    kinds = Counter(step.reason.split(" (")[0] for step in compared)
    print("  " + ", ".join(f"{kind}: {count}" for kind, count in kinds.most_common()))
    for step in [step for step in compared if not step.acceptable][:show]:
        equals = ", ".join(map(str, sorted(step.equals)))
        print(f"  step {step.number}: it chose {step.real}, the rule one of {equals}: {step.reason}")
