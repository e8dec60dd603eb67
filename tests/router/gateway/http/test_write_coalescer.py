import asyncio

from router.gateway.http.write_coalescer import WriteCoalescer
from tests.support.waiting import iterations


class Writer:
    def __init__(self, outbox, fails=False):
        self.outbox, self.fails, self.flushed = outbox, fails, 0

    def flush(self):
        self.flushed += 1
        if self.fails:
            raise RuntimeError("closed")


async def test_all_writers_are_flushed_at_the_end_of_the_iteration(caplog):
    outbox = WriteCoalescer(asyncio.get_running_loop())
    writers = [Writer(outbox), Writer(outbox, fails=True), Writer(outbox)]
    for writer in writers:
        outbox.add(writer)
    assert [writer.flushed for writer in writers] == [0, 0, 0]
    await iterations(1)
    assert [writer.flushed for writer in writers] == [1, 1, 1]
    assert [record.message for record in caplog.records] == ["write failed"]
    outbox.add(writers[0])
    await iterations(1)
    assert [writer.flushed for writer in writers] == [2, 1, 1]


async def test_a_writer_added_by_a_flush_waits_for_the_next_iteration():
    outbox = WriteCoalescer(asyncio.get_running_loop())
    late = Writer(outbox)

    class Adding:
        def flush(self):
            outbox.add(late)

    outbox.add(Adding())
    await iterations(1)
    assert late.flushed == 0
    await iterations(1)
    assert late.flushed == 1


async def test_the_gateway_is_quiet_after_an_iteration_with_one_writer():
    outbox = WriteCoalescer(asyncio.get_running_loop())
    writers = [Writer(outbox), Writer(outbox)]
    assert outbox.quiet
    for some in (writers, writers[:1], writers, []):
        for writer in some:
            outbox.add(writer)
        outbox.note_after(writers.count, 0)
        await iterations(1)
        assert outbox.quiet is (len(some) < 2)


async def test_notes_follow_the_writes_in_order(caplog):
    outbox, seen = WriteCoalescer(asyncio.get_running_loop()), []

    class Seen:
        def flush(self):
            seen.append("written")

    outbox.note_after(seen.append, "first")
    outbox.note_after([].remove, "missing")
    outbox.add(Seen())
    outbox.note_after(seen.append, "second")
    assert not seen
    await iterations(1)
    assert seen == ["written", "first", "second"]
    assert [record.message for record in caplog.records] == ["note failed"]
    outbox.note_after(seen.append, "third")
    await iterations(1)
    assert seen[3:] == ["third"]
