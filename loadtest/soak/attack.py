"""The attacker during a soak: a process of its own, and the results of its requests."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Self

from loadtest.fleet.process import Process, uninterrupted
from loadtest.soak.fleet import ATTACKED


class Attack:
    """Attacks the gateway at `address` for the length of a ``with``."""

    def __init__(self, address: str, seed: int) -> None:
        command = [sys.executable, "-P", "-m", "loadtest.attack.attacker", "--address", address]
        self._command = [*command, "--model", ATTACKED, "--seed", str(seed)]
        self.counts: Counter[str] = Counter()
        """Attacks by name; filled at the end."""
        self.requests: Counter[str] = Counter()
        """The attacker's requests by how they ended; filled at the end."""

    def __enter__(self) -> Self:
        with uninterrupted():
            self._process = Process(self._command, "attacker")
        return self

    def __exit__(self, *_: object) -> None:
        alive = self._process.alive
        self._process.kill()
        for line in self._process.rest():
            self._read(line)
        if not alive:
            self.counts["ended early"] += 1

    def _read(self, line: str) -> None:
        """Count one line of the attacker's output: ``attack NAME STATUS=COUNT ...``."""
        word, _, rest = line.strip().partition(" ")
        if word == "attack":
            name, *counts = rest.split()
            self.counts[name] += 1
            for count in counts:
                status, _, number = count.partition("=")
                self.requests[status] += int(number)

    @property
    def troubles(self) -> list[str]:
        """Return the reasons why the attack proves nothing; empty if it ran."""
        ended = self.counts["ended early"]
        return [f"the attacker ended early:\n{self._process.tail()}"] if ended or not self.counts else []
