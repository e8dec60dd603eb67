import time

from router.replicas.line import Line
from tests.support.waiting import eventually


class Flood:
    """A Redis whose subscription always has a message at hand."""

    def pubsub(self):
        return self

    async def subscribe(self, channel):
        pass

    async def get_message(self, timeout):
        return {"type": "message", "data": b"x"}

    async def aclose(self):
        pass

    async def publish(self, channel, message):
        pass


async def test_a_flood_of_messages_leaves_the_loop_most_of_the_time():
    """Without a rest the reader would never give the loop back."""

    def receive(message, now_s):
        time.sleep(0.001)
        return True

    line = Line(Flood(), "c", lambda now_s: None, receive, lambda: None, lambda: 0.02)
    line.start()
    began_s = time.perf_counter()
    await eventually(lambda: line.received >= 50)
    took_s = time.perf_counter() - began_s
    await line.aclose()
    assert took_s > 3 * 0.001 * 40
