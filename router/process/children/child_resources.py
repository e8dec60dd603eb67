"""The sockets and the shared memory that a child process receives from its supervisor."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from router.control.state.desired_state import DesiredState
from router.process.children.accept_balancer import LeastConnections
from router.process.shared_memory.ledger import Ledger


@dataclass(frozen=True, slots=True)
class ChildResources:
    """`public` and `admin` already listen. `state` is the desired state to start with."""

    process: int
    processes: int
    state: DesiredState

    public: Sequence[socket.socket]
    admin: socket.socket
    ledger: Ledger
    accept_order: LeastConnections
    replica: str = ""
    """The gateway's id in its fleet."""
    instance: str = ""
    """The gateway's name in Via."""
