"""The workers that the last hour's traffic needs, by simulation of its decision log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import msgspec

from backends.engine.profile import UnknownProfile, load_profile
from router.admin.http.problems import AdminError, invalid
from router.admin.operations import Answer, Call, operation, read
from router.admin.planner.documents import PlannerDocument, PlanQuestion
from router.config.model import Config, PolicyConfig
from router.security.token import Role

LOG_S = 3_600.0
"""The part of the log that is planned for: its last hour."""
SEEDS = 2
_LIMITS = ("ttft", "tpot", "e2el")
_NO_LOG = {409: "no decision log is written, or nothing was recorded in the last hour"}
_SHOWN = 8


@read("planner", PlannerDocument, problems=_NO_LOG)
async def get_planner(call: Call) -> Answer:
    """The latest plan of the fleet's size, with its age; or that one is being made. It starts none."""
    latest = call.port.planner.latest
    if latest is None:
        _log_files(call.system.config)
        return Answer(PlannerDocument(state="none"))
    return Answer(latest.document())


@operation(
    "POST",
    "/admin/v1/planner",
    role=Role.OPERATE,
    takes=PlanQuestion,
    gives=PlannerDocument,
    status=HTTPStatus.ACCEPTED,
    problems=_NO_LOG | {409: "no decision log is written, or another plan is made"},
)
async def make_plan(call: Call) -> Answer:
    """Find the cheapest fleet for the last hour of the decision log, in a process of its own with a limit of CPU time.
    The answer comes at once; GET shows the plan."""
    question: PlanQuestion = call.body
    files = _log_files(call.system.config)
    words = [*_words(question, call), "--log", *map(str, files)]
    run = call.port.planner.start(question, words, [*_unknown(call)])
    return Answer(run.document(), HTTPStatus.ACCEPTED)


def _log_files(config: Config) -> list[Path]:
    """Return the files of the decision log, of all processes, that were written to in the last hour.

    Raises:
        AdminError: 409, there are none.
    """
    path = None if config.decision_log.path is None else Path(config.decision_log.path)
    if path is None:
        detail = "no decision log is written; set decision_log.path, and ask an hour later"
        raise AdminError(HTTPStatus.CONFLICT, "no_decision_log", detail)
    stem, dot, endings = path.name.partition(".")
    name = path.name if config.processes == 1 else f"{stem}-[0-9]*{dot}{endings}"
    found = [one for pattern in (name, f"{name}.[0-9]*") for one in sorted(path.parent.glob(pattern))]
    recent = [one for one in found if one.is_file() and one.stat().st_mtime >= time.time() - LOG_S]
    if not recent:
        detail = f"nothing was written to {path} in the last hour; ask again when there was traffic"
        raise AdminError(HTTPStatus.CONFLICT, "no_decision_log", detail)
    return recent


def _words(question: PlanQuestion, call: Call) -> Iterator[str]:
    """Yield the words of the command line, each with its value, so that no value is read as a flag."""
    limits = [(name, getattr(question, f"{name}_ms")) for name in _LIMITS]
    if all(limit is None for _, limit in limits):
        raise invalid("the question has no limit; give ttft_ms, tpot_ms or e2el_ms")
    yield from ("--goodput", *(f"{name}:{limit!r}" for name, limit in limits if limit is not None))
    for one in question.candidates:
        try:
            load_profile(one.profile)
        except UnknownProfile as error:
            raise invalid(f"candidates: {error}") from None
        if ":" in one.profile:
            raise invalid(f"candidates: the path {one.profile!r} has a colon; name a file without one")
        price = "" if one.price_per_hour is None else f":price={one.price_per_hour!r}"
        yield f"--candidate={one.profile}{price}:most={one.most}"
    rules = question.policies or [_text(call.system.control.state.settings.policy), "round_robin"]
    yield f"--policy={','.join(dict.fromkeys(rules))}"
    yield f"--attainment={question.attainment!r}"
    yield f"--growth={question.growth!r}"
    yield f"--window-s={question.window_s!r}"
    yield from (f"--seeds={SEEDS}", "--jobs=1", "--quick", f"--last-s={LOG_S!r}")


def _text(policy: PolicyConfig) -> str:
    """Return a policy as the command line has it."""
    wrappers = ((name, getattr(policy, name)) for name in ("hold", "lanes"))
    given = [*policy.params.items(), *((name, on) for name, on in wrappers if isinstance(on, bool))]
    given += [
        (f"{name}.{key}", value)
        for name in ("hold", "lanes")
        if isinstance(table := getattr(policy, name), dict)
        for key, value in table.items()
    ]
    return ":".join([policy.rule, *(f"{key}={msgspec.json.encode(value).decode()}" for key, value in given)])


def _unknown(call: Call) -> Iterator[str]:
    config, workers = call.system.config, list(call.system.control.state.settings.workers)
    more = f" and {len(workers) - _SHOWN} more" if len(workers) > _SHOWN else ""
    yield (
        f"the profile of {', '.join(workers[:_SHOWN]) or 'the workers'}{more}: workers do not say which GPU they have."
        " Fleets are made of the candidates; `warmroute calibrate` makes a profile of a worker"
    )
    if config.decision_log.share < 1.0:
        yield (
            f"the minutes that are not recorded: decision_log.share is {config.decision_log.share:g}. The recorded ones"
            " follow each other"
        )
    if config.classes:
        yield "the classes of requests: the log does not have them. All requests are one class"
    if config.redis.url is not None:
        yield "requests of other gateways of this fleet: the log is this gateway's"
