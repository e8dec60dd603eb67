"""How much the property tests try: by default the same 30 examples every time, `--hypothesis-profile=nightly` for
1,000 new ones, `long` for hours. And Ctrl-C for the processes that tests start, also where they run in the background.
"""

import gc
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

from hypothesis import HealthCheck, settings

from tests.support.examples import USUAL

# `make test-compiled` keeps the checkout out of sys.path, and the wheel has no generators of pages.
if importlib.util.find_spec("docs") is None:
    sys.modules["docs"] = ModuleType("docs")
    sys.modules["docs"].__path__ = [str(Path(__file__).parents[1] / "docs")]

# tests that fetch say from where
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# On a machine with other work to do, time says nothing about the code.
_ANY_MACHINE = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("usual", max_examples=USUAL, derandomize=True, **_ANY_MACHINE)
settings.register_profile("nightly", max_examples=1_000, **_ANY_MACHINE)
settings.register_profile("long", max_examples=50_000, **_ANY_MACHINE)


def pytest_configure(config):
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("usual")
    # a shell has what runs with "&" ignore it, and so would every child
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    gc.freeze()  # modules and tests live to the end: no collection has to look at them
