"""CPU time per request where prompts are known by their text alone: the gateway and its workers have no tokenizer.

A Warmroute gets a gateway and stand-ins of its own for it, with everything on. Other routers never use a tokenizer, so
they are measured as they are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.bench.measures.requests import closed_loop
from loadtest.bench.measures.sample import Samples, Setting
from loadtest.bench.proxies.entrant import Proxy, standins
from loadtest.bench.proxies.warmroute import KEY_HEADER, everything, started

FIGURE = "text-2k"
WORKERS = 4


async def by_text(proxy: Proxy, setting: Setting) -> Samples:
    """Measure requests of 2 kB."""
    if not proxy.program:
        return {FIGURE: await closed_loop(proxy, setting, proxy.requests())}
    with _gateway(proxy.program) as own:
        return {FIGURE: await closed_loop(own, setting, own.requests())}


@contextmanager
def _gateway(program: tuple[str, ...]) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder, ExitStack() as stack:
        place = stack.enter_context(standins(WORKERS, Path(folder)))
        proxy, _ = stack.enter_context(started("gateway", program, place, everything(place), tokenizer=False))
        proxy.headers = KEY_HEADER
        yield proxy
