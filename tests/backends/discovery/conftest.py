import asyncio
from contextlib import asynccontextmanager

from backends.discovery.report import SourceReport


@asynccontextmanager
async def followed(source):
    report = SourceReport(lambda: None, lambda: 0.0)
    task = asyncio.ensure_future(source.run(report))
    try:
        yield report
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
