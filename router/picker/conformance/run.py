"""Run the cases against a picker, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from router.picker.conformance.bench import Bench
from router.picker.conformance.case import CaseResult, ConformanceCase
from router.picker.conformance.cases import cases
from router.picker.conformance.channel import expect_reachable, open_channel, plain_target
from router.picker.conformance.fixture import Fixture
from router.picker.conformance.health_client import HealthClient
from router.picker.conformance.hook import ActionNotOffered, Hook, HookFailed
from router.picker.conformance.outcome import CaseFailed, CaseSkipped, Verdict


async def run_conformance(
    fixture: Fixture,
    hook: Hook | None,
    only: Collection[str] = (),
    report: Callable[[CaseResult], None] = lambda result: None,
) -> list[CaseResult]:
    """Return the result of each case, in the order of the numbers. `only` has the ids of those wanted; empty means all.

    Raises:
        TargetUnreachable: nothing answers at the target.
    """
    chosen = [(id_, case) for id_, case in cases() if not only or id_ in only]
    results = []
    async with _bench(fixture, hook) as bench:
        for id_, case in sorted(chosen, key=lambda one: one[1].last):
            result = await _run(id_, case, bench, hook is not None)
            report(result)
            results.append(result)
    return sorted(results, key=lambda result: result.case.number)


@asynccontextmanager
async def _bench(fixture: Fixture, hook: Hook | None) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(plain_target(fixture.target, fixture.tls, fixture.ca_file))
        channel = await stack.enter_async_context(open_channel(target.address))
        await expect_reachable(channel, fixture)
        health_channel = channel
        if fixture.health is not None:
            health_channel = await stack.enter_async_context(open_channel(fixture.health))
        health = HealthClient(health_channel, fixture.patience.answer_s, own_port=fixture.health is not None)
        yield Bench(fixture, hook, target, channel, health)


async def _run(id_: str, case: ConformanceCase, bench: Bench, hooked: bool) -> CaseResult:
    began = time.perf_counter()
    reason = _not_applicable(case, bench.fixture, hooked)
    verdict, detail = (Verdict.SKIP, reason) if reason else await _verdict(case, bench)
    return CaseResult(id_, case, verdict, detail, 1e3 * (time.perf_counter() - began))


def _not_applicable(case: ConformanceCase, fixture: Fixture, hooked: bool) -> str:
    """Return why a case cannot be tried; empty if it can."""
    if case.profile not in fixture.profiles:
        return f"profile {case.profile} was not asked for"
    if len(fixture.endpoints) < case.endpoints:
        return f"needs {case.endpoints} of the pool's endpoints (--endpoint); {len(fixture.endpoints)} were named"
    missing = [option for option in case.given if not fixture.has(option)]
    if missing:
        return f"needs {', '.join(missing)}"
    if case.actions and not hooked:
        return f"needs a hook (--hook) with {', '.join(case.actions)}"
    return ""


async def _verdict(case: ConformanceCase, bench: Bench) -> tuple[Verdict, str]:
    try:
        async with asyncio.timeout(bench.patience.case_s):
            return Verdict.PASS, await case.check(bench) or ""
    except TimeoutError:
        return Verdict.FAIL, f"did not end within {bench.patience.case_s:g} s"
    except Exception as error:  # one odd answer must not cost the report of all others
        return _ended_with(_first_leaf(error))


def _first_leaf(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _ended_with(error: Exception) -> tuple[Verdict, str]:
    if isinstance(error, CaseSkipped | ActionNotOffered):
        return Verdict.SKIP, str(error)
    if isinstance(error, CaseFailed | HookFailed):
        return Verdict.FAIL, str(error)
    return Verdict.FAIL, f"the suite could not read what came: {type(error).__name__}: {error}"
