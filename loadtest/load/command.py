"""The command line of ``warmroute load``. Flags that `vllm bench serve` has, too, have its names and meanings."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from loadtest.arguments import above_zero, checked, flags_exit_as_input, positive, seconds, share, whole, writable

KEY_VARIABLE = "OPENAI_API_KEY"
GOALS = ("ttft", "tpot", "itl", "e2el", "ntpot", "ttfc", "ttfo")
_RATE = checked(float, lambda value: value > 0.0, "a number above 0, or inf")
_PART = checked(float, lambda value: 0.0 <= value <= 1.0, "a number from 0 to 1")

_DESCRIPTION = """\
Send load to an OpenAI endpoint, and report latency, goodput and whether a goal is met. Latency counts from the time at
which the schedule wants a request sent. A run whose client was too slow is void, and an overloaded endpoint has no
steady percentiles. Exit code: 0 the goal is met, 1 it is not, 2 not decided, 3 wrong input."""

_EPILOG = """\
examples:
  warmroute load http://127.0.0.1:8080 --request-rate 4 --num-prompts 500 --goodput ttft:500 tpot:50
  warmroute load http://127.0.0.1:8080 --max-concurrency 32 --dataset-name sharegpt --dataset-path share.json
  warmroute load http://127.0.0.1:8080 --dataset-name generator:agents --duration 30m --backend openai-chat
  warmroute load http://127.0.0.1:8080 --dataset-name trace --dataset-path conversation.jsonl.zst --html load.html
  warmroute load http://127.0.0.1:8080 --users 50 --think-time 8 --duration 10m --warm-up-s 60"""


class _Pairs(argparse.Action):
    """Collects (name, value) pairs in a mapping; a later one replaces an earlier one."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), **dict(values)})


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "load",
        help="load an OpenAI endpoint, and judge its latency",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    flags_exit_as_input(parser)
    parser.add_argument("url", type=_url, metavar="URL", help="the endpoint, without /v1")
    _endpoint(parser.add_argument_group("endpoint"))
    _dataset(parser.add_argument_group("dataset"))
    _schedule(parser.add_argument_group("schedule"))
    _judgement(parser.add_argument_group("judgement"))
    _output(parser.add_argument_group("output"))
    parser.set_defaults(run=run, defaults=vars(parser.parse_args(["http://localhost"])))


def _endpoint(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", metavar="NAME", help="model to ask for (default: the first of /v1/models)")
    group.add_argument(
        "--backend", choices=("openai", "openai-chat"), default="openai", help="completions or chat (default: openai)"
    )
    group.add_argument("--endpoint", metavar="PATH", help="path of the API (default: that of --backend)")
    group.add_argument(
        "--header",
        dest="headers",
        type=_pair,
        nargs="+",
        action=_Pairs,
        default=_key(),
        metavar="NAME=VALUE",
        help=f"headers of each request; {KEY_VARIABLE} in the environment is sent as a bearer token",
    )
    group.add_argument(
        "--class",
        dest="classes",
        type=_class,
        nargs="+",
        default=(),
        metavar="NAME:WEIGHT[,HEADER=VALUE...]",
        help="classes of sessions, drawn by weight, with their headers; measures are split by them",
    )
    group.add_argument("--session-header", metavar="NAME", help="header that names the session of each request")
    group.add_argument("--extra-body", type=_object, default={}, metavar="JSON", help="fields added to each body")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="ask for the full length of each answer (default: where the dataset has no texts of its own)",
    )
    group.add_argument(
        "--request-limit-s", type=above_zero, default=600.0, help="a request without end fails then (default 600)"
    )


def _dataset(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset-name",
        default="random",
        metavar="NAME",
        help="random (default), prefix_repetition, sharegpt, custom, trace, timed_trace (blocks of 16 tokens, "
        "seconds), or generator:NAME[:key=value,...]",
    )
    group.add_argument("--dataset-path", type=Path, metavar="FILE", help="file of sharegpt, custom or a trace")
    group.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="folder of the model's tokenizer.json, for exact prompt lengths"
    )
    group.add_argument(
        "--input-len",
        "--random-input-len",
        type=positive,
        default=1024,
        help="tokens of a synthetic prompt (default 1024)",
    )
    group.add_argument(
        "--output-len",
        "--random-output-len",
        type=positive,
        help="tokens of an answer (default: 128, or the dataset's)",
    )
    group.add_argument(
        "--range-ratio",
        "--random-range-ratio",
        type=_PART,
        default=0.0,
        help="random lengths are within this share of the mean (default 0)",
    )
    group.add_argument(
        "--prefix-len",
        "--random-prefix-len",
        type=whole,
        help="tokens of a shared prefix (default: 0, or 256 for prefix_repetition)",
    )
    group.add_argument("--num-prefixes", type=positive, default=10, help="prefixes of prefix_repetition (default 10)")
    group.add_argument("--disable-shuffle", action="store_true", help="keep the order of sharegpt's and custom's rows")
    group.add_argument("--multi-turn", action="store_true", help="play every turn of sharegpt, with the real answers")
    group.add_argument("--seed", type=int, default=0, help="draws times and texts (default 0)")


def _schedule(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--num-prompts", type=positive, help="requests (default: 1000 without --duration)")
    group.add_argument("--duration", type=_duration, metavar="TIME", help="length of the run, as in 90s, 30m, 72h")
    group.add_argument(
        "--request-rate",
        type=_RATE,
        help="sessions that begin per second; inf: at once, or one after the other with --max-concurrency "
        "(default: the dataset's own times, else inf)",
    )
    group.add_argument(
        "--burstiness", type=_RATE, default=1.0, help="shape of the gaps: 1 Poisson, less burstier, inf constant"
    )
    group.add_argument("--max-concurrency", type=positive, help="requests in flight, at most")
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="how the rate grows")
    group.add_argument("--ramp-up-start-rps", type=above_zero, help="rate at the start of the ramp")
    group.add_argument("--ramp-up-end-rps", type=above_zero, help="rate at its end")
    group.add_argument("--rate-series", type=Path, metavar="FILE", help="CSV or JSONL with time_s and rate")
    group.add_argument("--users", type=positive, help="people who ask, read, think and ask again")
    group.add_argument("--think-time", type=seconds, default=0.0, metavar="S", help="their mean pause in seconds")
    group.add_argument("--num-warmups", type=whole, default=0, help="other requests before the run (default 0)")
    group.add_argument("--processes", type=positive, default=1, help="processes that make load (default 1)")


def _judgement(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--goodput",
        type=_goal,
        nargs="+",
        action=_Pairs,
        default={},
        metavar="MEASURE:MS",
        help=f"limits in ms, as ttft:500 tpot:50; of {', '.join(GOALS)}",
    )
    group.add_argument(
        "--attainment", type=share, default=0.99, help="share of the requests that is to meet them (default 0.99)"
    )
    group.add_argument(
        "--find",
        choices=("goodput", "knee"),
        help="search the highest rate that meets the goals, or the concurrency where throughput stops to grow",
    )
    group.add_argument("--warm-up-s", type=seconds, default=0.0, help="first part of the run that does not count")


def _output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--metric-percentiles", type=_percentiles, default=(0.99,), metavar="P,...", help="further ones (default 99)"
    )
    group.add_argument("--save-result", action="store_true", help="write the figures as JSON")
    group.add_argument("--save-detailed", action="store_true", help="with lists of every request's values")
    group.add_argument("--result-dir", default=".", metavar="DIR", help="folder of the JSON file (default: this one)")
    group.add_argument("--result-filename", metavar="NAME", help="its name (default: of rate, model and date)")
    group.add_argument("--label", metavar="NAME", help="label in the JSON file and its name")
    group.add_argument(
        "--metadata", type=_pair, nargs="+", action=_Pairs, default={}, metavar="K=V", help="further JSON fields"
    )
    group.add_argument(
        "--checkpoints", type=Path, metavar="DIR", help="for long runs: windows and rotated records; resumes from them"
    )
    group.add_argument("--checkpoint-each", type=_duration, default=600.0, metavar="TIME", help="(default 10m)")
    group.add_argument(
        "--watch-rss", type=_watched, metavar="PID|URL", help="process, or page of metrics, with the memory"
    )
    for name, what in (("records", "one JSON line per request"), ("csv", "the figures"), ("html", "a page with plots")):
        group.add_argument(f"--{name}", type=writable, metavar="FILE", help=f"write {what}")


def run(args: argparse.Namespace) -> int:
    from loadtest.load.run import run as start  # late import: other commands' help loads no HTTP client

    return start(args)


def _key() -> dict[str, str]:
    key = os.environ.get(KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no URL; write http://HOST:PORT")
    return text.rstrip("/").removesuffix("/v1")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _class(text: str) -> tuple[str, float, dict[str, str]]:
    """Return the class's name, its weight and its headers."""
    first, *headers = text.split(",")
    name, _, weight = first.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:WEIGHT[,HEADER=VALUE...]")
    return name, above_zero(weight), dict(map(_pair, headers))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value


def _goal(text: str) -> tuple[str, float]:
    """Return a measure and its limit in seconds."""
    name, colon, limit = text.partition(":")
    if name not in GOALS or not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is no goal; write MEASURE:MS with one of {', '.join(GOALS)}")
    return name, above_zero(limit) * 1e-3


def _duration(text: str) -> float:
    """Return seconds; 90, 90s, 30m, 72h and 3d are durations."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:])
    return above_zero(text[:-1]) * unit if unit else above_zero(text)


def _watched(text: str) -> str:
    if not text.isdigit() and not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a process id nor a URL")
    return text


def _percentiles(text: str) -> tuple[float, ...]:
    return tuple(dict.fromkeys(share(str(float(part) / 100.0)) for part in text.split(",")))
