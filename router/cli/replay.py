"""``warmroute replay``: decide again on a decision log, and compare."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from backends.foreign_json import read_json
from router.cli.formats import change_s, seconds, share
from router.cli.options import Commands, add_command
from router.config.problems import ConfigError, Problem

if TYPE_CHECKING:
    from policies.spec import PolicySpec
    from router.placement.decision_log.summary import Choices, Summary

_EXAMPLES = """\
examples:
  warmroute replay decisions.jsonl                   the policies of the log decide again: all the same
  warmroute replay decisions.jsonl --policy lpwl     where another rule would have differed
  warmroute replay decisions.jsonl.* --policy batch  a policy of the log, in place of all of them

The estimates are those of the gateway at each decision, under the load that the recorded choices made.
exit codes: 0 replayed; 1 a file cannot be read; 2 an option is wrong.
"""


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "replay",
        "decide again on a decision log, with another policy",
        "Decide again on a decision log, and show where the choices differ.",
        _EXAMPLES,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="files of one process, oldest first")
    parser.add_argument("--policy", metavar="NAME", help="a policy of the log, or a rule (default: as recorded)")
    parser.add_argument("--params", metavar="JSON", default="{}", help="parameters of the rule, as a JSON object")
    parser.add_argument("--hold", action=argparse.BooleanOptionalAction, help="hold long prompts with this rule")
    parser.add_argument("--lanes", action=argparse.BooleanOptionalAction, help="keep prefill lanes with this rule")
    parser.add_argument("--show", metavar="N", type=int, default=10, help="differences to list (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """LogReplay and print.

    Raises:
        ConfigError: the policy cannot be built.
    """
    # late: `warmroute --help` must not wait for the policies
    import msgspec

    from policies.registry import PolicyError
    from router.placement.decision_log.log_replay import LogError, LogReplay
    from router.placement.decision_log.summary import summed

    try:
        replay = LogReplay(log_lines(arguments.files), arguments.policy, _spec(arguments))
        summary = summed(replay, max(0, arguments.show))
    except PolicyError as error:
        raise ConfigError([Problem("--policy", str(error).removesuffix(f"; {error.fix}"), error.fix)]) from None
    except (LogError, OSError) as error:
        print(f"warmroute: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    else:
        print("\n".join(_text(summary, arguments.policy or "the policies of the log", replay.stateless)))
    return 0


def _spec(arguments: argparse.Namespace) -> PolicySpec | None:
    import msgspec

    from policies.spec import PolicySpec

    if arguments.policy is None:
        return None
    try:
        params = read_json(arguments.params, dict)
    except msgspec.DecodeError as error:
        raise ConfigError(
            [Problem("--params", str(error), 'write a JSON object, such as {"stream_weight": 0.2}')]
        ) from None
    return PolicySpec(arguments.policy, params, arguments.hold, arguments.lanes)


def log_lines(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the lines of all files. A file that a killed process left ends at its last whole line."""
    for path in files:
        with gzip.open(path, "rb") if _is_gzip(path) else path.open("rb") as file, contextlib.suppress(EOFError):
            for line in file:
                if line.endswith(b"\n"):
                    yield line


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _text(summary: Summary, name: str, stateless: Iterable[str]) -> Iterator[str]:
    count = summary.decisions
    yield f"{count:,} decisions, {summary.same:,} the same with {name} ({share(summary.same_share)})"
    for policy in sorted(stateless):
        yield f"the log has no state of {policy}: it began afresh"
    if not count:
        return
    yield ""
    yield f"{'':24}{'recorded':>12}{'replayed':>12}"
    recorded, replayed = summary.recorded, summary.replayed
    yield f"{'mean predicted TTFT':24}{seconds(recorded.ttft_s / count):>12}{seconds(replayed.ttft_s / count):>12}"
    yield f"{'cached share':24}{share(_cached(recorded)):>12}{share(_cached(replayed)):>12}"
    yield f"{'held':24}{recorded.held:>12,}{replayed.held:>12,}"
    if summary.first:
        yield ""
        yield f"{'request':38}{'recorded':24}{'replayed':24}{'TTFT':>10}{'cached':>9}"
    for one in summary.first:
        workers = f"{one.recorded:24}{one.replayed:24}"
        yield f"{one.request_id[:36]:38}{workers}{change_s(one.change_s):>10}{one.change_cached_tokens:>+9}"


def _cached(choices: Choices) -> float | None:
    return choices.cached_tokens / choices.prompt_tokens if choices.prompt_tokens else None
