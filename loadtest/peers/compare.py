"""The whole comparison: one fleet, every contender in every round in random order, then the tables."""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtest.fleet.process import StartError
from loadtest.peers.contenders import Contender
from loadtest.peers.figures import Figures, figures, reusable_share
from loadtest.peers.report import by_contender, print_tables, write_json
from loadtest.peers.trial import Stage, run_trial
from loadtest.peers.workers import FleetShape, Worker, running_workers, served_model
from loadtest.workload.conversations import Conversation
from loadtest.workload.groups import Cut, GroupShape, cutter, generate_groups

WARM_UP = GroupShape(
    groups=8, conversations=32, turns=1, system_tokens=500, opening_tokens=200, answer_tokens=8, starts_per_s=12.0
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One comparison.

    `seed` draws text, times and the order of contenders. `baseline` is the denominator of the ratios.
    """

    fleet: FleetShape
    workload: GroupShape
    rounds: int
    seed: int
    baseline: str
    environment: Path
    session_header: str | None = None

    def describe(self) -> dict[str, object]:
        fleet = asdict(self.fleet)
        del fleet["vllm_env"]
        own = {"rounds": self.rounds, "seed": self.seed, "session_header": self.session_header}
        return {**own, "fleet": fleet, "workload": asdict(self.workload)}


def run(setting: Setting, contenders: Sequence[Contender], json: Path | None, logs: Path | None) -> int:
    """Compare, print and write; return 0 if every contender answered every request."""
    # A file or a pipe has no width, and the default of 80 is too narrow for six columns.
    console = Console() if sys.stdout.isatty() else Console(width=180)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        with _log_folder(logs) as folder:
            return _Comparison(console, setting, _installed(console, setting, contenders), folder).run(json)
    except (StartError, OSError) as error:
        sys.stderr.write(f"python -m loadtest peers: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


@contextmanager
def _log_folder(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="warmroute-peers-") as temporary:
            yield Path(temporary)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def _installed(console: Console, setting: Setting, contenders: Sequence[Contender]) -> list[Contender]:
    found = []
    for contender in contenders:
        version = contender.version(setting.environment)
        if version is None:
            said = f"is skipped: {contender.router} is not installed in {setting.environment} (`make peers-env`)"
            console.print(f"{contender.name} {said}", style="yellow", highlight=False)
        else:
            console.print(f"{contender.name}: {contender.router} {version}", highlight=False)
            found.append(contender)
    if not found:
        raise StartError("none of the contenders is installed")
    return found


def _warm_up(cut: Cut) -> list[Conversation]:
    # The first words distinguish it from the workload, which may draw the same files.
    drawn = generate_groups(WARM_UP, 0, cut)
    return [replace(conversation, system=f"Warm-up.\n{conversation.system}") for conversation in drawn]


class _Comparison:
    """One comparison and its results so far."""

    def __init__(self, console: Console, setting: Setting, contenders: Sequence[Contender], logs: Path) -> None:
        self._console = console
        self._setting = setting
        self._contenders = contenders
        self._logs = logs
        self._order = Random(setting.seed)
        self._runs: list[Figures] = []
        self._reusable: list[float] = []
        self._errors: list[str] = []

    def run(self, json: Path | None) -> int:
        """Run every round, then print and write the tables. Return 1 if anything failed."""
        with ExitStack() as stack:
            workers = self._start(stack)
            stages = [self._stage(workers, number) for number in range(1, self._setting.rounds + 1)]
            commands = self._commands(stages[0])
            for number, stage in enumerate(stages, 1):
                self._round(number, stage)
        self._report()
        if json is not None:
            setting = {**self._setting.describe(), "reusable_share": self._reusable}
            write_json(json, setting, commands, self._runs)
        return 1 if self._errors else 0

    def _start(self, stack: ExitStack) -> tuple[Worker, ...]:
        shape = self._setting.fleet
        kind = "embedded" if shape.simulated else "vLLM"
        with self._bar() as bar:
            task = bar.add_task(f"starting {kind} workers", total=shape.workers)
            return stack.enter_context(running_workers(shape, self._logs, lambda number: bar.advance(task)))

    def _stage(self, workers: tuple[Worker, ...], number: int) -> Stage:
        model, model_dir = served_model(workers[0])
        cut = cutter(model_dir)
        return Stage(
            workers=workers,
            model=model,
            warm_up=_warm_up(cut),
            conversations=generate_groups(self._setting.workload, self._setting.seed + number, cut),
            environment=self._setting.environment,
            logs=self._logs,
            session_header=self._setting.session_header,
        )

    def _commands(self, stage: Stage) -> dict[str, str]:
        commands = {contender.name: shlex.join(contender.command(stage.site())) for contender in self._contenders}
        for name, command in commands.items():
            self._console.print(f"{name}:\n  {command}", highlight=False, soft_wrap=True)
        return commands

    def _round(self, number: int, stage: Stage) -> None:
        order = self._order.sample(self._contenders, len(self._contenders))
        for place, contender in enumerate(order, 1):
            title = f"round {number}/{self._setting.rounds}, {place}/{len(order)}: {contender.name}"
            try:
                self._trial(number, stage, contender, title)
            except StartError as error:
                # The failure of one contender must not lose the runs of the others, which take minutes.
                self._errors.append(str(error))
                self._console.print(str(error), style="red", highlight=False)

    def _trial(self, number: int, stage: Stage, contender: Contender, title: str) -> None:
        with self._bar() as bar:
            task = bar.add_task(title, total=self._setting.workload.requests)
            log = f"round-{number}-{contender.router}-{contender.policy}"
            timings, usage = run_trial(stage, contender, log, lambda timing: bar.advance(task))
        self._runs.append(figures(contender.name, number, timings, usage))
        self._errors += [f"{title}: {timing.error}" for timing in timings if timing.error is not None]
        reusable = reusable_share(stage.conversations, timings, self._setting.workload.system_tokens)
        if reusable is not None and len(self._reusable) < number:
            self._reusable.append(reusable)

    def _report(self) -> None:
        names = [contender.name for contender in self._contenders]
        print_tables(self._console, by_contender(names, self._runs), self._setting.baseline)
        if self._reusable:
            shares = ", ".join(f"{share:.3f}" for share in self._reusable)
            self._console.print(f"one worker with an endless cache would have found: {shares}", highlight=False)
        for error in sorted(set(self._errors))[:5]:
            self._console.print(f"failed: {error}", style="red", highlight=False)
        if self._errors:
            self._console.print("runs with failures are left out above")

    def _bar(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self._console)
