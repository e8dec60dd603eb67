"""``warmroute worker``: run one embedded worker, which simulates vLLM without a GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from backends.engine.profile import profile_names
from backends.simulated.settings import SHIPPED_MODEL, BoundWorker, WorkerSettings
from router.cli.guard import guarded

_DESCRIPTION = """\
Serve a simulated vLLM worker: its HTTP API, metrics and KV events, with the GPU replaced by a timing model. The worker
tokenises, caches and schedules prompts by vLLM's rules, and answers with random words. Use it to try Warmroute and in
tests."""

_EPILOG = """\
examples:
  warmroute worker --port 9001 --kv-events-port 5557 --kv-events-replay-port 5558
  warmroute worker --profile llama-3.1-70b-4xh100 --time-scale 0.1
  warmroute worker --model-dir ./Qwen3-32B --served-model-name qwen3-32b --profile qwen3-32b-2xh100"""


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
    _add_serving(parser.add_argument_group("serving"))
    _add_hardware(parser.add_argument_group("simulated hardware"))
    _add_answers(parser.add_argument_group("answers"))
    _add_connector(parser.add_argument_group("KV connector"))
    _add_events(parser.add_argument_group("KV events"))
    parser.set_defaults(run=_run)


def _add_serving(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=_port, default=9001, help="port; 0: chosen by the system (default: %(default)s)")
    group.add_argument(
        "--served-model-name", default=SHIPPED_MODEL, metavar="NAME", help="model name (default: %(default)s)"
    )
    group.add_argument(
        "--model-dir",
        type=_model_dir,
        metavar="DIR",
        help="folder with tokenizer.json, tokenizer_config.json and config.json; no weights (default: shipped)",
    )
    group.add_argument("--chat-template", type=_text_file, metavar="FILE", help="Jinja template instead of the model's")
    group.add_argument(
        "--max-model-len", type=_positive, metavar="TOKENS", help="longest context (default: config.json's)"
    )
    group.add_argument("--lora", action="append", default=[], metavar="NAME", help="serve a LoRA adapter; repeatable")
    group.add_argument(
        "--max-num-queued-reqs", type=_positive, metavar="N", help="answer 503 beyond N requests in flight"
    )
    group.add_argument("--enable-request-id-headers", action="store_true", help="answer with X-Request-Id")
    group.add_argument("--dev-mode", action="store_true", help="serve /sleep, /pause, /reset_prefix_cache and so on")
    group.add_argument("--runtime-lora", action="store_true", help="serve /v1/load_lora_adapter and its inverse")


def _add_hardware(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile", choices=profile_names(), default="llama-3.1-8b-h100", help="engine profile (default: %(default)s)"
    )
    group.add_argument(
        "--time-scale",
        type=_not_negative,
        default=1.0,
        metavar="X",
        help="factor on every wait; 0: do not wait at all (default: %(default)s)",
    )
    group.add_argument(
        "--speed",
        type=_above_zero,
        default=1.0,
        metavar="X",
        help="factor on the hardware's speed (default: %(default)s)",
    )
    group.add_argument(
        "--jitter", type=_share, default=0.05, metavar="SHARE", help="spread of step times (default: %(default)s)"
    )
    cache = group.add_mutually_exclusive_group()
    cache.add_argument("--num-gpu-blocks", type=_positive, metavar="N", help="KV cache blocks (default: the profile's)")
    cache.add_argument(
        "--kv-gib", type=_above_zero, metavar="X", help="size of the KV cache, in GiB of the model's layout"
    )
    group.add_argument(
        "--max-num-batched-tokens", type=_positive, metavar="N", help="tokens per step (default: the profile's)"
    )
    group.add_argument("--max-num-seqs", type=_positive, metavar="N", help="requests per step (default: the profile's)")
    group.add_argument("--seed", type=int, default=0, help="seed of words, stops and jitter (default: %(default)s)")


def _add_answers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--default-max-tokens",
        type=_positive,
        default=128,
        metavar="N",
        help="tokens of an answer, if the chat request sets no maximum (default: %(default)s)",
    )
    group.add_argument(
        "--stop-probability",
        type=_share,
        default=0.0,
        metavar="P",
        help="chance to stop after each token, unless a request sets ignore_eos (default: %(default)s)",
    )
    group.add_argument(
        "--no-prompt-tokens-details",
        action="store_true",
        help="leave cached_tokens out of usage, as vLLM does without --enable-prompt-tokens-details",
    )
    group.add_argument(
        "--disable-log-stats", action="store_true", help="leave loads and cache counters out of /metrics, as vLLM does"
    )
    group.add_argument(
        "--openai-only",
        action="store_true",
        help="serve only chat completions, completions and models, without KV events and cached_tokens",
    )


def _add_connector(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kv-connector",
        choices=["nixl_pull", "nixl_push", "mooncake", "moriio_pull", "shared_store", "lmcache", "offloading_peer"],
        help="hand the KV cache of prompts over between simulated workers; with offloading_peer, keep blocks in host "
        "memory and pull from each other",
    )
    group.add_argument(
        "--kv-store",
        type=Path,
        metavar="DIR",
        help="the folder that stands for the store of shared_store and lmcache, the same for all workers",
    )
    group.add_argument(
        "--kv-lease",
        type=_above_zero,
        default=30.0,
        metavar="SECONDS",
        help="how long blocks wait for the other worker (default: %(default)s)",
    )
    group.add_argument(
        "--kv-turn-lease",
        type=_above_zero,
        metavar="SECONDS",
        help="how long a decode worker with nixl_pull keeps the blocks of an answer for the next turn (default: it "
        "does not)",
    )
    group.add_argument(
        "--kv-transfer-speed",
        type=_above_zero,
        default=400_000.0,
        metavar="TOKENS",
        help="prompt tokens moved per second (default: %(default)s)",
    )


def _add_events(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--no-kv-events", action="store_true", help="publish no KV events")
    group.add_argument(
        "--kv-events-port", type=_port, default=0, metavar="PORT", help="0: chosen by the system (default)"
    )
    group.add_argument(
        "--kv-events-replay-port", type=_port, default=0, metavar="PORT", help="0: chosen by the system (default)"
    )
    group.add_argument(
        "--kv-events-topic", default="kv-events", metavar="TOPIC", help="topic of events (default: %(default)s)"
    )
    group.add_argument(
        "--kv-events-buffer-steps",
        type=_positive,
        default=10_000,
        metavar="N",
        help="batches kept for replay (default: %(default)s)",
    )


def _settings(args: argparse.Namespace) -> WorkerSettings:
    return WorkerSettings(
        host=args.host,
        port=args.port,
        model_name=args.served_model_name,
        model_dir=args.model_dir,
        chat_template=args.chat_template,
        lora_adapters=tuple(args.lora),
        profile=args.profile,
        seed=args.seed,
        jitter=args.jitter,
        speed=args.speed,
        time_scale=args.time_scale,
        num_blocks=args.num_gpu_blocks,
        kv_gib=args.kv_gib,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        max_model_len=args.max_model_len,
        max_num_queued_reqs=args.max_num_queued_reqs,
        default_max_tokens=args.default_max_tokens,
        stop_probability=args.stop_probability,
        prompt_tokens_details=not (args.no_prompt_tokens_details or args.openai_only),
        log_stats=not args.disable_log_stats,
        openai_only=args.openai_only,
        request_id_headers=args.enable_request_id_headers,
        dev_mode=args.dev_mode,
        runtime_lora=args.runtime_lora,
        kv_connector=args.kv_connector,
        kv_store_dir=args.kv_store,
        kv_lease_s=args.kv_lease,
        kv_turn_lease_s=args.kv_turn_lease,
        kv_transfer_tokens_per_s=args.kv_transfer_speed,
        kv_events=not (args.no_kv_events or args.openai_only),
        kv_events_port=args.kv_events_port,
        kv_events_replay_port=args.kv_events_replay_port,
        kv_events_topic=args.kv_events_topic,
        kv_events_buffer_steps=args.kv_events_buffer_steps,
    )


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


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= 65_535:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port; write a number from 0 to 65535")


def _positive(text: str) -> int:
    if text.isdecimal() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _not_negative(text: str) -> float:
    if 0 <= (number := _number(text)) < float("inf"):
        return number
    raise argparse.ArgumentTypeError(f"{text!r} must be 0 or more")


def _above_zero(text: str) -> float:
    if 0 < (number := _number(text)) < float("inf"):
        return number
    raise argparse.ArgumentTypeError(f"{text!r} must be above 0")


def _share(text: str) -> float:
    if 0 <= (number := _number(text)) <= 1:
        return number
    raise argparse.ArgumentTypeError(f"{text!r} must be from 0 to 1")


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
