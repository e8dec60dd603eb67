"""Make the profile that the command asks for, and write it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.engine.profile import Profile
from backends.engine.profile_text import profile_text
from loadtest.calibrate.kernels.compose import Ranks
from loadtest.calibrate.kernels.profile import KernelSource, profile_of_kernels
from loadtest.calibrate.readings import CalibrationError
from loadtest.calibrate.worker.facts import Target
from loadtest.calibrate.worker.plan import WorkerLimits
from loadtest.calibrate.worker.profile import check, profile_of_worker

OF_KERNELS = ("worker", "kv_tokens", "block_size", "tensor_parallel", "link_gb_per_s")
BLOCK_SIZE = 16
"""vLLM's default."""


def calibrate(args: argparse.Namespace) -> int:
    """Make the profile, or compare one with the worker; return the exit code.

    Raises:
        CalibrationError: the message says why there is no profile.
    """
    if args.check is not None:
        _refuse(args, OF_KERNELS, "--check measures nothing, and has no use for")
        unknown = asyncio.run(check(str(args.check), _target(args, args.source)))
        say(f"{args.check} is a profile of {args.source}")
        if unknown:
            say(f"not compared, because one of both does not know it: {', '.join(unknown)}")
        return 0
    if args.out is not None and args.out.exists():
        raise CalibrationError(f"{args.out} exists; name another file, or remove it")
    text = profile_text(asyncio.run(_profile(args)))
    if args.out is None:
        sys.stdout.write(text)
    else:
        args.out.write_text(text, encoding="utf-8")
        say(f"wrote {args.out}; use it with --profile {args.out}")
    return 0


def say(line: str) -> None:
    """Print to standard error, because the profile goes to standard output."""
    sys.stderr.write(f"{line}\n")


async def _profile(args: argparse.Namespace) -> Profile:
    config = Path(args.source)
    if not config.exists():
        _refuse(args, OF_KERNELS, f"{args.source} is no file, and only a config.json has")
        return await profile_of_worker(_target(args, args.source), say)
    if args.tensor_parallel is not None and args.tensor_parallel > 1 and args.link_gb_per_s is None:
        raise CalibrationError("several GPUs exchange results: write --link-gb-per-s, which one GPU cannot measure")
    ranks = Ranks(args.tensor_parallel or 1, args.link_gb_per_s or 1.0)
    if args.worker is None:
        target, limits = None, _limits(args)
    else:
        _refuse(args, ("kv_tokens", "block_size"), "the worker says its own, so that there is no")
        target, limits = _target(args, args.worker), None
    source = KernelSource(config, ranks, limits, args.hardware)
    return await profile_of_kernels(source, target, say)


def _refuse(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(args, name):
            raise CalibrationError(f"{why} --{name.replace('_', '-')}")


def _target(args: argparse.Namespace, url: str) -> Target:
    return Target(url, args.max_num_batched_tokens, args.max_num_seqs, args.hardware)


def _limits(args: argparse.Namespace) -> WorkerLimits | None:
    batched, seqs, tokens = args.max_num_batched_tokens, args.max_num_seqs, args.kv_tokens
    if None in (batched, seqs, tokens):
        return None
    return WorkerLimits(tokens, tokens, args.block_size or BLOCK_SIZE, batched, seqs, prefix_caching=True)
