"""Turn flags into the settings of both sides: those of the lab's cells, and the size of the workers."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import fields, replace

from backends.engine.profile import load_profile
from loadtest.compare.cases import CASES, Usual
from loadtest.compare.contenders import parse_contender
from loadtest.compare.modelled import asked
from loadtest.lab.cell import Cell, Fleet, Setting
from loadtest.lab.models import Models
from loadtest.lab.saturation import RULE, Saturation

BLOCK_TOKENS = 16
LONGEST_TOKENS = 131_072
"""Most tokens of prompt and answer together, from the config.json of the model that the workers serve."""


class Unplayable(Exception):
    """The setting cannot be played; the message says what to change."""


def settled(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags with the settings of the case, or the usual ones, in place of those that were left out.

    Raises:
        Unplayable: no rule is named.
    """
    usual = Usual() if args.case is None else CASES[args.case]
    said = {name: value for name, value in vars(args).items() if value is not None}
    found = argparse.Namespace(**vars(args) | {one.name: getattr(usual, one.name) for one in fields(usual)} | said)
    if args.load is not None:
        found.rate = None
    if not found.policy:
        raise Unplayable("no rule is named; add --policy NAME,NAME, such as --policy marginal_cost,round_robin")
    found.peer = [parse_contender(one) if isinstance(one, str) else one for one in found.peer]
    return found


def first_cell(args: argparse.Namespace) -> Cell:
    """Return seed 0 at the trace's own rate. Modelled workers are all alike, as live ones are.

    Raises:
        Unplayable: nothing would be measured.
    """
    if args.warm_up_s >= args.window_s:
        raise Unplayable(
            f"--warm-up-s {args.warm_up_s:g} leaves nothing of --window-s {args.window_s:g} to measure;"
            " make the window longer or the warm-up shorter"
        )
    models = Models(
        block_tokens=BLOCK_TOKENS,
        kv_tokens=args.kv_tokens,
        speed_spread=0.0,
        async_scheduling=args.backend == "vllm",
        warm_up_s=args.warm_up_s,
    )
    setting = Setting(Fleet(args.workers, args.profile), args.slo, models, args.window_s)
    return Cell(args.trace, RULE, 1.0, 0, setting)


def cells(args: argparse.Namespace, one: Saturation | None) -> list[list[Cell]]:
    """Return a list of cells for each seed, one per rule, at the requested load; at ``--rate`` if `one` is None.

    Raises:
        Unplayable: there is no call, or one that is too long for a worker.
    """
    first = first_cell(args)
    first = first.at(args.rate) if one is None else replace(first, rate=one.rate * args.load, load=args.load)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    found = [[replace(first, seed=seed, policy=rule) for rule in args.policy] for seed in seeds]
    _check((same[0] for same in found), longest_tokens(args))
    return found


def _check(seeds: Iterable[Cell], limit_tokens: int) -> None:
    for cell in seeds:
        sessions = asked(cell).plan.sessions
        if not sessions:
            raise Unplayable(f"seed {cell.seed} has no call in the window; take a longer --window-s or a higher --rate")
        for session in sessions:
            tokens = max(call.prompt.tokens + call.answer[1] for call in session.calls)
            if tokens > limit_tokens:
                raise Unplayable(
                    f"{session.id} of seed {cell.seed} has a call of {tokens:,} tokens, a worker takes"
                    f" {limit_tokens:,}; take a trace with shorter ones, or more --kv-tokens"
                )


def longest_tokens(args: argparse.Namespace) -> int:
    """Return the length of the longest request that fits a worker. vLLM reserves one of its blocks, the null block."""
    return min(LONGEST_TOKENS, (kv_tokens(args) // BLOCK_TOKENS - 1) * BLOCK_TOKENS)


def kv_tokens(args: argparse.Namespace) -> int:
    return int(args.kv_tokens or load_profile(args.profile).kv_tokens)
