"""The rigs of the gateway's own tests and of the conformance tables."""

from tests.conformance.conftest import kit, pytest_asyncio_loop_factories, recording, rig

__all__ = ["kit", "pytest_asyncio_loop_factories", "recording", "rig"]
