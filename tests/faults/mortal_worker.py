"""A ``warmroute worker`` that dies of prompts with one certain word, like an engine that hits a bug.

The first argument is the way to die. With ``kill`` the process ends at once, by SIGKILL. With ``exit`` it answers 500
and exits a moment later, as vLLM's server does after the death of its engine.
"""

import asyncio
import os
import signal
import sys
from http import HTTPStatus

from backends.simulated.errors import ApiError
from backends.simulated.worker import SimulatedWorker
from warmroute import main

EXITS_AFTER_S = 0.15


def mortal(how):
    submit = SimulatedWorker.submit

    def submit_or_die(self, prompts, *rest, **options):
        if any("poison" in self.prompts.decode(prompt) for prompt in prompts):
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            asyncio.get_running_loop().call_later(EXITS_AFTER_S, os._exit, 1)
            raise ApiError(
                "The server had an error while processing your request.", status=HTTPStatus.INTERNAL_SERVER_ERROR
            )
        return submit(self, prompts, *rest, **options)

    SimulatedWorker.submit = submit_or_die


if __name__ == "__main__":
    mortal(sys.argv[1])
    sys.argv[1] = "worker"
    raise SystemExit(main())
