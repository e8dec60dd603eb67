"""``warmroute load``: warm up, play the order, judge and report."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import IO, Any

import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from loadtest.arguments import INPUT_ERROR
from loadtest.load.drive import Batch, LoadError, drive
from loadtest.load.endurance import Endurance, growth
from loadtest.load.order import Order
from loadtest.load.orders import order_of
from loadtest.load.output.figures import detailed, figures
from loadtest.load.output.page import write_page
from loadtest.load.output.report import print_report, write_csv, write_json
from loadtest.load.records import Record
from loadtest.load.results import Results
from loadtest.load.search.find import find
from loadtest.report.sheet import print_sheet
from loadtest.workload.errors import WorkloadError

WARM_UP_SEED = 7_919
"""Added to the seed of requests before the run, so that they leave no prompt of the run in a cache."""
SAY_EACH_S = 10.0
"""Time between two lines of progress without a terminal."""


def run(args: argparse.Namespace) -> int:
    """Run the command; return 0 met, 1 not met, 2 not decided, 3 input error."""
    console = Console()
    try:
        order = order_of(args, served(args.url, args.headers, args.model))
        return measure(args, order, console)
    except (WorkloadError, LoadError, OSError, ValueError) as error:
        sys.stderr.write(f"warmroute load: {error}\n")
        return INPUT_ERROR


def served(url: str, headers: Mapping[str, str], model: str | None) -> str:
    """Return the model to ask for: the given one, or the first that the endpoint lists.

    Raises:
        LoadError: the endpoint lists none, or does not answer.
    """
    if model is not None:
        return model
    try:
        answer = httpx.get(f"{url.rstrip('/')}/v1/models", headers=dict(headers), timeout=10.0)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, LookupError, ValueError, TypeError) as error:
        raise LoadError(f"{url} names no model at /v1/models ({error}); give --model") from None


def measure(args: argparse.Namespace, order: Order, console: Console) -> int:
    if args.num_warmups:
        before = msgspec.structs.replace(
            order, num_prompts=args.num_warmups, seed=order.seed + WARM_UP_SEED, duration_s=None
        )
        warm = played(console, before, Results(open_loop=False), "warm-up")
        if not warm.tally.completed:
            raise LoadError(f"no request of the warm-up was answered: {next(iter(warm.tally.errors))}")
    if args.find is not None:
        answer, found = find(args, order, console, lambda *run: played(console, *run))
        found |= about(args, order) | {"model_id": order.model}
        if args.save_result:
            write_json(result_file(args, found), found)
        return int(answer)
    results = Results(args.goodput, args.attainment, args.warm_up_s, not order.is_closed)
    kept: list[Record] = []
    with ExitStack() as files:
        heard: list[Callable[[Record], object]] = [kept.append] if args.save_detailed else []
        if args.records is not None:
            file = files.enter_context(args.records.open("wb"))
            heard.append(lambda one: _write(file, one))
        try:
            if args.checkpoints is None:
                played(console, order, results, "load", heard)
            else:
                played_long(args, console, order, results, heard)
        except KeyboardInterrupt:
            console.print("[yellow]interrupted[/yellow]: figures of the requests that had ended")
    if not results.tally.total:
        raise LoadError("no request was sent after the warm-up; make the run longer")
    findings = results.judged()
    found = figures(order, results, findings, args.metric_percentiles, about(args, order))
    print_report(console, found, results, findings)
    _write_files(args, found, kept, results)
    return int(findings.answer)


def played_long(
    args: argparse.Namespace, console: Console, order: Order, results: Results, heard: list[Callable[[Record], object]]
) -> None:
    """Play what is left of a long run, with its checkpoints.

    Raises:
        LoadError: nothing is left.
    """
    long = Endurance(args.checkpoints, args.checkpoint_each, args.goodput, args.watch_rss)
    left_s = order.length_s - long.begun_s
    if left_s <= 0.0:
        raise LoadError(f"{args.checkpoints} has the whole run already; name another folder")
    if long.resumed:
        console.print(f"resumed after {long.resumed} windows, {left_s / 3600.0:,.2f} h left", highlight=False)
    rest = msgspec.structs.replace(order, duration_s=left_s, seed=order.seed + long.resumed)
    try:
        played(console, rest, results, "load", [*heard, long.hear], lambda: long.tick(time.monotonic()))
    finally:
        long.close(time.monotonic())
        print_sheet(console, growth(long.windows))


def _write(file: IO[bytes], one: Record) -> None:
    file.write(msgspec.json.encode(one) + b"\n")


def played(
    console: Console,
    order: Order,
    results: Results,
    name: str,
    heard: list[Callable[[Record], object]] | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Results:
    """Play an order into `results`."""
    with watched(console, order, results, name) as shown:

        def on_batch(batch: Batch) -> None:
            results.add(batch.records, batch.lags_s)
            for one in batch.records:
                for hear in heard or ():
                    hear(one)
            tick()
            shown()

        drive(order, on_batch)
    return results


@contextmanager
def watched(console: Console, order: Order, results: Results, name: str) -> Iterator[Callable[[], None]]:
    """Show progress with rate, errors and time left; without a terminal, a line now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.fields[said]}"))
    began_s = said_s = time.monotonic()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=1.0, said="")

        def shown() -> None:
            nonlocal said_s
            share, said = progress(order, results, time.monotonic() - began_s)
            bar.update(task, completed=share, said=said)
            if not console.is_terminal and time.monotonic() - said_s > SAY_EACH_S:
                said_s = time.monotonic()
                console.print(f"{name}: {said}", highlight=False)

        yield shown


def progress(order: Order, results: Results, spent_s: float) -> tuple[float, str]:
    """Return the share of the run that is over, and its state in words."""
    ended = results.tally.total + results.warm_up
    by_number = ended / order.num_prompts if order.num_prompts else 0.0
    share = min(1.0, max(by_number, spent_s / order.length_s))
    left = f"{spent_s / share - spent_s:,.0f} s left" if share else "time left unknown"
    return share, f"{ended:,} ended, {ended / max(spent_s, 1e-9):,.1f}/s, {results.tally.failed:,} failed, {left}"


def about(args: argparse.Namespace, order: Order) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "label": args.label,
        "tokenizer_id": str(args.tokenizer) if args.tokenizer else None,
        "request_rate": _rate(args, order),
        **args.metadata,
        "dataset": msgspec.to_builtins(order.dataset, enc_hook=str),
        "seed": order.seed,
    }


def _rate(args: argparse.Namespace, order: Order) -> float | str | None:
    """Return the rate as `vllm bench serve` does; None if ramps, users or the dataset's times set it."""
    if args.request_rate in (None, inf):
        return "inf" if order.rates is None and not order.timed and order.users is None else None
    return float(args.request_rate)


def _write_files(args: argparse.Namespace, found: dict[str, Any], kept: list[Record], results: Results) -> None:
    if args.save_result or args.save_detailed:
        write_json(result_file(args, found), found | (detailed(kept) if args.save_detailed else {}))
    if args.csv is not None:
        write_csv(args.csv, found)
    if args.html is not None:
        write_page(args.html, found, results)


def result_file(args: argparse.Namespace, found: Mapping[str, Any]) -> Path:
    """Return the path of the JSON, by default named as `vllm bench serve` names it."""
    if args.result_filename is not None:
        return Path(args.result_dir, args.result_filename)
    at_once = f"-concurrency{args.max_concurrency}" if args.max_concurrency else ""
    model = str(found["model_id"]).rpartition("/")[2]
    label = args.label or args.find or args.backend
    rate = "" if found["request_rate"] is None else f"-{found['request_rate']}qps"
    return Path(args.result_dir, f"{label}{rate}{at_once}-{model}-{found['date']}.json")
