"""The command line of ``warmroute fleet``."""

from __future__ import annotations

import argparse
from pathlib import Path

from backends.vllm.handover.connectors import CONNECTORS
from loadtest.arguments import PROFILES, above_zero, checked, part, profile_name

LAST_PORT = 65_535
_COUNT = checked(int, lambda value: 0 < value <= 64, "a whole number from 1 to 64")
_PORT = checked(int, lambda port: 0 < port <= LAST_PORT, f"a port from 1 to {LAST_PORT}")
_SCALE = checked(float, lambda value: 0 <= value < float("inf"), "a number of at least 0")

_DESCRIPTION = """\
Start N workers on this machine, which run until Ctrl-C. One that ends leaves the others running. --vllm N starts vLLM's
own servers with the GPU replaced by a clock: HTTP, scheduler, cache and KV events are real, and the forward pass is a
timing model. --simulated N starts Warmroute's embedded workers, which are light and ready within a second."""

_EPILOG = """\
examples:
  warmroute fleet --vllm 2
  warmroute fleet --vllm 2 --model-dir ./Qwen3-32B --profile qwen3-32b-2xh100 --kv-gib 8 -- --max-num-seqs 64
  warmroute fleet --simulated 4 --time-scale 0.5 --base-port 9001
  warmroute fleet --simulated 4 --roles prefill=1,decode=3
  warmroute fleet --vllm 4 --roles prefill=2,decode=2
  warmroute fleet --simulated 4 --roles prefill=2,decode=2 --kv-connector mooncake
  warmroute fleet --simulated 2 --kv-connector offloading_peer

--vllm needs an environment with vLLM. In a checkout, `make vllm-env` builds one without CUDA."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "fleet",
        help="start vLLM workers without GPUs, or embedded workers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--vllm", type=_COUNT, metavar="N", help="number of clock workers")
    kind.add_argument("--simulated", type=_COUNT, metavar="N", help="number of embedded workers")
    add = parser.add_argument
    folder = "folder with config.json and tokenizer, no weights (default: shipped)"
    add("--model-dir", type=Path, metavar="DIR", help=folder)
    add("--base-port", type=_PORT, metavar="PORT", help="port of the first worker; each further one takes the next")
    size = "each KV cache in GiB of the model's layout (default: the profile's)"
    add("--kv-gib", type=above_zero, metavar="X", help=size)
    scale = "factor on every modelled wait; 0: do not wait (default: %(default)s)"
    add("--time-scale", type=_SCALE, default=1.0, metavar="S", help=scale)
    add("--jitter", type=part, default=0.05, metavar="SHARE", help="spread of step times (default %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="seed of words and jitter; each worker adds its number")
    roles = "roles for a KV handover, as prefill=1,decode=3; all others are mixed"
    add("--roles", type=_roles, default={}, metavar="ROLE=N,...", help=roles)
    add("--vllm-env", type=Path, metavar="DIR", help="environment with vLLM (default: the one found)")
    add("--logs", type=Path, metavar="DIR", help="write each worker's output to DIR")
    text = f"engine profile: {PROFILES} (default: %(default)s)"
    add("--profile", type=profile_name, default="llama-3.1-8b-h100", metavar="PROFILE", help=text)
    add(
        "--kv-connector",
        choices=tuple(CONNECTORS),
        help="KV connector of embedded workers with --roles (default: nixl_pull, the only one of --vllm); "
        "without --roles, workers with offloading_peer pull prefixes from each other",
    )
    add("flags", nargs="*", metavar="-- FLAGS", help="further flags for each vLLM or embedded worker")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from loadtest.fleet.run import run as start  # late import: other commands' help must not wait for HTTP clients

    return start(args)


def _roles(text: str) -> dict[str, int]:
    roles: dict[str, int] = {}
    for role_text in text.split(","):
        role, _, number = role_text.partition("=")
        if role not in ("prefill", "decode") or role in roles:
            raise argparse.ArgumentTypeError(f"{role_text!r} is not a role; write prefill=N, decode=N or both")
        roles[role] = _COUNT(number)
    return roles
