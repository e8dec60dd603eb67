"""The command line of ``warmroute calibrate``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtest.arguments import above_zero, positive, writable

_DESCRIPTION = """\
Make an engine profile: the step times of a model on a GPU, for `warmroute worker`, `warmroute fleet` and simulations.
SOURCE is the URL of an idle worker, which gets 18 requests and says its KV cache. Or it is a model's config.json, whose
kernels are timed here with torch; a worker, where there is one, then gets 10 requests. The profile has a fingerprint of
what it was measured on."""

_EPILOG = """\
examples:
  warmroute calibrate http://10.0.0.7:8000 --out h100-llama.toml
  warmroute calibrate http://10.0.0.7:8000 --hardware "NVIDIA H100" --max-num-batched-tokens 8192 --max-num-seqs 256
  warmroute calibrate http://10.0.0.7:8000 --check h100-llama.toml
  warmroute calibrate ./Mixtral-8x7B/config.json --worker http://10.0.0.7:8000 --out h100-mixtral.toml
  warmroute calibrate ./Llama-3.1-8B --kv-tokens 440000 --max-num-batched-tokens 8192 --max-num-seqs 256

The worker gets the bearer token in OPENAI_API_KEY, if it is set."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="make a profile of a GPU and a model",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="a worker's URL, or a model's config.json or folder")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--out", type=writable, metavar="FILE.toml", help="write the profile here (default: print it)")
    output.add_argument(
        "--check", type=Path, metavar="FILE.toml", help="compare a profile's fingerprint with the worker; send nothing"
    )
    parser.add_argument("--hardware", metavar="TEXT", help="the GPU, where the worker does not say it")
    for name in ("--max-num-batched-tokens", "--max-num-seqs"):
        parser.add_argument(name, type=positive, metavar="N", help="as vLLM's flag, where no worker says it")
    kernels = parser.add_argument_group("kernels of a config.json (needs torch)")
    add = kernels.add_argument
    add("--worker", metavar="URL", help="scale the kernels' times to this worker, and take its limits")
    add("--kv-tokens", type=positive, metavar="N", help="KV cache, where no worker says it")
    add("--block-size", type=positive, metavar="N", help="block, where no worker says it (default 16)")
    add("--tensor-parallel", type=positive, metavar="N", help="GPUs of a worker (default 1)")
    add("--link-gb-per-s", type=above_zero, metavar="X", help="speed of the links between them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make a profile; return 1 if it cannot be made or does not match."""
    # Late imports: other commands' help must not wait for numpy and HTTP clients.
    from loadtest.calibrate.readings import CalibrationError
    from loadtest.calibrate.run import calibrate

    try:
        return calibrate(args)
    except CalibrationError as error:
        sys.stderr.write(f"warmroute calibrate: {error}\n")
        return 1
