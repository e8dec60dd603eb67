"""A hostile client for a soak: it makes one attack after the other, drawn from a seed, until a signal stops it.

    python -m loadtest.soak.attack.attacker --address 127.0.0.1:8000 --model attacked

At the end of each attack it prints ``[NAME, COUNTS]``: the number of requests by status.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from random import Random
from typing import Self

from loadtest.fleet.process import started
from loadtest.soak.attack import shapes
from loadtest.soak.attack.clients import FLOODS, attack, flood, head, request

SECONDS = 2.0
PAUSE_S = 0.5
ATTACKED = "attacked"
"""The model that an attacker's requests name."""
_BODY_BYTES = 9_800_000
_LARGE_BYTES = 15_000_000
_PATHS = (shapes.CHAT, shapes.COMPLETIONS, shapes.MESSAGES, shapes.RESPONSES, shapes.EMBEDDINGS, shapes.TOKENIZE)
_CLIENT_HELLO = bytes.fromhex("16030100c4010000c00303") + bytes(32)
_CHAT_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "


class Attacker:
    """One attacker: the gateway's address, the model that accepts its bodies, and a random source."""

    def __init__(self, address: str, model: str, rng: Random) -> None:
        self._address = address
        self._model = model
        self._rng = rng
        self._words = 0
        self._deck: list[str] = []

    def next(self) -> tuple[str, Mapping[str, int]]:
        """Carry out the next attack of a shuffled deck; return its name, and its requests by status."""
        if not self._deck:
            self._deck = self._rng.sample(list(ATTACKS), len(ATTACKS))
        name = self._deck.pop()
        return name, ATTACKS[name](self)

    def flood(self) -> Mapping[str, int]:
        """Send pipelined requests and never read the answers."""
        kind = self._rng.choice(list(FLOODS))
        taken = flood(self._address, kind, self._rng.choice((1, 8)), SECONDS)
        return {"flooded": taken // len(FLOODS[kind])}

    def form(self) -> Mapping[str, int]:
        """Send multipart forms whose parts are slow to read."""
        return self._send(shapes.TRANSCRIPTIONS, self._rng.choice(shapes.MULTIPART_SHAPES), 2)

    def body(self) -> Mapping[str, int]:
        """Send JSON bodies that are expensive to decode or to tokenise."""
        return self._send(self._rng.choice(_PATHS), self._rng.choice(shapes.JSON_SHAPES), 2)

    def eight_bodies(self) -> Mapping[str, int]:
        """Send eight large bodies at the same time."""
        sent = request(self._chat(self._rng.choice(shapes.JSON_SHAPES), _LARGE_BYTES), None)
        return attack(self._address, lambda number: sent, 8, 0.0, least=8).statuses

    def one_byte_chunks(self) -> Mapping[str, int]:
        sent = request(self._chat("text", 400_000), None, chunked=True)
        return attack(self._address, lambda number: sent, 2, SECONDS).statuses

    def small_bodies(self) -> Mapping[str, int]:
        """Send many short prompts at once, all of them new."""

        return attack(self._address, lambda number: request(self._chat("text", 2_000), None), 32, SECONDS).statuses

    def half_heads(self) -> Mapping[str, int]:
        """Send heads one byte at a time that never end."""
        return self._hold(_CHAT_HEAD[:20], trickle=True)

    def half_handshakes(self) -> Mapping[str, int]:
        """Send the beginning of a TLS handshake."""
        return self._hold(_CLIENT_HELLO)

    def idle(self) -> Mapping[str, int]:
        return self._hold(b"")

    def half_bodies(self) -> Mapping[str, int]:
        """Send bodies that stop before their announced length."""
        body = self._chat("short_messages", 1_000_000)
        return self._hold(head(body, None) + body.data[:500_000], count=20)

    def aborts(self) -> Mapping[str, int]:
        """Send requests and reset the connection during the body or before the answer."""
        sent = request(self._chat("text", 20_000), None)
        count, end_s = 0, time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            with suppress(OSError), self._dial() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(sent[: self._rng.randint(1, len(sent))])
                count += 1
            time.sleep(0.005)
        return {"reset": count}

    def _send(self, path: str, shape: str, connections: int) -> Counter[str]:
        body = shapes.build(path, shape, _BODY_BYTES, self._model, self._word())
        sent = request(body, None)
        return attack(self._address, lambda number: sent, connections, SECONDS).statuses

    def _hold(self, data: bytes, count: int = 200, *, trickle: bool = False) -> Mapping[str, int]:
        """Open `count` connections, send `data` on each, and keep them open."""
        with ExitStack() as stack:
            connections = [stack.enter_context(self._dial()) for _ in range(count)]
            end_s = time.monotonic() + SECONDS
            for connection in connections:
                with suppress(OSError):
                    connection.sendall(data)
            while time.monotonic() < end_s:
                time.sleep(0.25)
                for connection in connections if trickle else ():
                    with suppress(OSError):
                        connection.send(b"a")
        return {"held": count}

    def _dial(self) -> socket.socket:
        host, _, port = self._address.rpartition(":")
        return socket.create_connection((host, int(port)), 10)

    def _chat(self, shape: str, size_bytes: int) -> shapes.Body:
        return shapes.build(shapes.CHAT, shape, size_bytes, self._model, self._word())

    def _word(self) -> str:
        self._words += 1
        return f"{self._rng.getrandbits(64):x} {self._words}"


ATTACKS: dict[str, Callable[[Attacker], Mapping[str, int]]] = {
    each.__name__: each
    for each in (
        Attacker.flood,
        Attacker.form,
        Attacker.body,
        Attacker.eight_bodies,
        Attacker.one_byte_chunks,
        Attacker.small_bodies,
        Attacker.half_heads,
        Attacker.half_handshakes,
        Attacker.half_bodies,
        Attacker.idle,
        Attacker.aborts,
    )
}


class Attack:
    """Attacks the gateway at `address` for the length of a ``with``."""

    def __init__(self, address: str, seed: int) -> None:
        command = [sys.executable, "-P", "-m", "loadtest.soak.attack.attacker", "--address", address]
        self._command = [*command, "--model", ATTACKED, "--seed", str(seed)]
        self._stack = ExitStack()
        self.counts: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        """The attacker's requests by how they ended; filled at the end."""
        self.troubles: list[str] = []
        """Reasons why the attack proves nothing."""

    def __enter__(self) -> Self:
        self._process = started(self._stack, self._command, "attacker")
        return self

    def __exit__(self, *_: object) -> None:
        alive = self._process.alive
        self._process.kill()
        self._stack.close()
        for line in self._process.rest():
            self._read(line)
        if not alive or not self.counts:
            self.troubles.append(f"the attacker ended early:\n{self._process.tail()}")

    def _read(self, line: str) -> None:
        """Count one line of the attacker's output. Other lines are those of an error."""
        with suppress(ValueError):
            name, requests = json.loads(line)
            self.counts[name] += 1
            self.requests.update(requests)


def main(arguments: Sequence[str] | None = None) -> None:
    """Attack until killed, or until the parent process has ended."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.soak.attack.attacker", description=__doc__)
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    parser.add_argument("--model", required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    attacker, parent = Attacker(args.address, args.model, Random(args.seed)), os.getppid()
    while os.getppid() == parent:
        try:
            name, counts = attacker.next()
        except OSError as error:  # the gateway's other clients judge refused connections
            name, counts = "refused", {type(error).__name__: 1}
        print(json.dumps([name, counts]), flush=True)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
