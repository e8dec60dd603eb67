"""``warmroute worker``: run one embedded worker, which simulates vLLM without a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

from backends.engine.profile import UnknownProfile, load_profile, profile_names
from backends.simulated.settings import BoundWorker, WorkerSettings
from router.cli.guard import guarded

_DEFAULTS = asdict(WorkerSettings())
_DESCRIPTION = """\
Serve a simulated vLLM worker: its HTTP API, metrics and KV events, with the GPU replaced by a timing model. The worker
tokenises, caches and schedules prompts by vLLM's rules, and answers with random words. Use it to try Warmroute and in
tests."""

_EPILOG = """\
examples:
  warmroute worker --port 9001 --kv-events-port 5557 --kv-events-replay-port 5558
  warmroute worker --profile llama-3.1-70b-4xh100 --time-scale 0.1
  warmroute worker --model-dir ./Qwen3-32B --served-model-name qwen3-32b --profile qwen3-32b-2xh100"""


def _number(read: Callable[[str], float], allowed: Callable[[float], bool], needs: str) -> Callable[[str], float]:
    """Return a type of option: a number that is `allowed`."""

    def convert(text: str) -> float:
        with suppress(ValueError):
            if allowed(number := read(text)):
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is not {needs}")

    return convert


_port = _number(int, lambda number: 0 <= number <= 65_535, "a port; write a number from 0 to 65535")
_positive = _number(int, lambda number: number >= 1, "a whole number of at least 1")
_not_negative = _number(float, lambda number: 0 <= number < inf, "a number of 0 or more")
_above_zero = _number(float, lambda number: 0 < number < inf, "a number above 0")
_share = _number(float, lambda number: 0 <= number <= 1, "a number from 0 to 1")


def _profile(text: str) -> str:
    try:
        return load_profile(text).name
    except UnknownProfile as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    """Run ``warmroute worker`` without the other commands, whose imports are half of its start."""
    parser = argparse.ArgumentParser(prog="warmroute", allow_abbrev=False)
    register(parser.add_subparsers(metavar="COMMAND"))
    return guarded(_run, parser.parse_args())


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "worker",
        help="serve one simulated vLLM worker",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_run, **_DEFAULTS)  # before the options, which take their defaults from here
    _add_serving(parser.add_argument_group("serving"))
    _add_hardware(parser.add_argument_group("simulated hardware"))
    _add_answers(parser.add_argument_group("answers"))
    _add_connector(parser.add_argument_group("KV connector"))
    _add_events(parser.add_argument_group("KV events"))


def _add_serving(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", help="address to listen on (default: %(default)s)")
    add("--port", type=_port, default=9001, help="port; 0: chosen by the system (default: %(default)s)")
    add("--served-model-name", dest="model_name", metavar="NAME", help="model name (default: %(default)s)")
    add(
        "--model-dir",
        type=_model_dir,
        metavar="DIR",
        help="folder with tokenizer.json, tokenizer_config.json and config.json; no weights (default: shipped)",
    )
    add("--chat-template", type=_text_file, metavar="FILE", help="Jinja template instead of the model's")
    add("--max-model-len", type=_positive, metavar="TOKENS", help="longest context (default: config.json's)")
    lora = "serve a LoRA adapter; repeatable"
    add("--lora", dest="lora_adapters", action="append", default=[], metavar="NAME", help=lora)
    add("--max-num-queued-reqs", type=_positive, metavar="N", help="answer 503 beyond N requests in flight")
    add(
        "--enable-request-id-headers",
        dest="request_id_headers",
        action="store_true",
        help="answer with X-Request-Id",
    )
    add("--dev-mode", action="store_true", help="serve /sleep, /pause, /reset_prefix_cache and so on")
    add("--deaths", action="store_true", help="serve POST /death: die in one of vLLM's ways, at a token of a stream")
    drain = "after SIGTERM, let requests go on for so long, then fall silent, as vLLM does (default: abort them)"
    add("--shutdown-timeout", dest="shutdown_timeout_s", type=_not_negative, metavar="SECONDS", help=drain)
    add("--silent-shutdown", action="store_true", help="fall silent at SIGTERM, as vLLM does sometimes")
    add("--runtime-lora", action="store_true", help="serve /v1/load_lora_adapter and its inverse")


def _add_hardware(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    names = ", ".join(profile_names())
    profile = f"engine profile: a .toml file of `warmroute calibrate`, or one of {names} (default: %(default)s)"
    add("--profile", type=_profile, metavar="PROFILE", help=profile)
    waits = "factor on every wait; 0: do not wait at all (default: %(default)s)"
    add("--time-scale", type=_not_negative, metavar="X", help=waits)
    add("--speed", type=_above_zero, metavar="X", help="factor on the hardware's speed (default: %(default)s)")
    add("--jitter", type=_share, metavar="SHARE", help="spread of step times (default: %(default)s)")
    cache = group.add_mutually_exclusive_group()
    blocks = "KV cache blocks (default: the profile's)"
    cache.add_argument("--num-gpu-blocks", dest="num_blocks", type=_positive, metavar="N", help=blocks)
    size = "size of the KV cache, in GiB of the model's layout"
    cache.add_argument("--kv-gib", type=_above_zero, metavar="X", help=size)
    add("--max-num-batched-tokens", type=_positive, metavar="N", help="tokens per step (default: the profile's)")
    add("--max-num-seqs", type=_positive, metavar="N", help="requests per step (default: the profile's)")
    add("--seed", type=int, help="seed of words, stops and jitter (default: %(default)s)")


def _add_answers(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    tokens = "tokens of an answer, if the chat request sets no maximum (default: %(default)s)"
    add("--default-max-tokens", type=_positive, metavar="N", help=tokens)
    stops = "chance to stop after each token, unless a request sets ignore_eos (default: %(default)s)"
    add("--stop-probability", type=_share, metavar="P", help=stops)
    characters = (
        "chance of an emoji or a Chinese character, several tokens each, after each token (default: %(default)s)"
    )
    add("--character-share", type=_share, metavar="P", help=characters)
    add(
        "--no-prompt-tokens-details",
        dest="prompt_tokens_details",
        action="store_false",
        help="leave cached_tokens out of usage, as vLLM does without --enable-prompt-tokens-details",
    )
    stats = "leave loads and cache counters out of /metrics, as vLLM does"
    add("--disable-log-stats", dest="log_stats", action="store_false", help=stats)
    add(
        "--openai-only",
        action="store_true",
        help="serve only chat completions, completions and models, without KV events and cached_tokens",
    )


def _add_connector(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--kv-connector",
        choices=["nixl_pull", "nixl_push", "mooncake", "moriio_pull", "shared_store", "lmcache", "offloading_peer"],
        help="hand the KV cache of prompts over between simulated workers; with offloading_peer, keep blocks in host "
        "memory and pull from each other",
    )
    store = "the folder that stands for the store of shared_store and lmcache, the same for all workers"
    add("--kv-store", dest="kv_store_dir", type=Path, metavar="DIR", help=store)
    lease = "how long blocks wait for the other worker (default: %(default)s)"
    add("--kv-lease", dest="kv_lease_s", type=_above_zero, metavar="SECONDS", help=lease)
    speed = "prompt tokens moved per second (default: %(default)s)"
    add("--kv-transfer-speed", dest="kv_transfer_tokens_per_s", type=_above_zero, metavar="TOKENS", help=speed)


def _add_events(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--no-kv-events", dest="kv_events", action="store_false", help="publish no KV events")
    for option in ("--kv-events-port", "--kv-events-replay-port"):
        add(option, type=_port, metavar="PORT", help="0: chosen by the system (default)")
    add("--kv-events-topic", metavar="TOPIC", help="topic of events (default: %(default)s)")
    kept = "batches kept for replay (default: %(default)s)"
    add("--kv-events-buffer-steps", type=_positive, metavar="N", help=kept)


def _settings(args: argparse.Namespace) -> WorkerSettings:
    settings = WorkerSettings(**{name: getattr(args, name) for name in _DEFAULTS})
    settings = replace(settings, lora_adapters=tuple(settings.lora_adapters))
    return replace(settings, prompt_tokens_details=False, kv_events=False) if args.openai_only else settings


def _run(args: argparse.Namespace) -> int:
    # late: `warmroute --help` must not wait for the server, the tokenizer and the template engine
    import asyncio

    import uvloop

    from backends.simulated.serving import run
    from backends.vllm.unrenderable import Unrenderable

    settings = _settings(args)
    if (settings.kv_connector in ("shared_store", "lmcache")) != (settings.kv_store_dir is not None):
        print("warmroute worker: --kv-store goes with --kv-connector shared_store or lmcache", file=sys.stderr)
        return 2

    def ready(bound: BoundWorker) -> None:
        print(f"worker {bound.url} model {settings.model_name} profile {settings.profile}")
        if bound.kv_events_endpoint is not None:
            print(f"kv events {bound.kv_events_endpoint} replay {bound.kv_events_replay_endpoint}")
        sys.stdout.flush()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(settings, ready))
    except (OSError, ValueError, Unrenderable) as error:
        print(f"warmroute worker: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _model_dir(text: str) -> Path:
    folder = Path(text)
    for name in ("tokenizer.json", "config.json"):
        if not (folder / name).is_file():
            raise argparse.ArgumentTypeError(f"{text!r} has no {name}; name a model folder")
    return folder


def _text_file(text: str) -> str:
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {error}") from None
