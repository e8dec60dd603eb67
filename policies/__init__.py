"""Routing policies: pure rules that rank the candidates of a request.

`view` has the types that a policy receives and returns; `registry` builds a policy by name. The package imports
nothing else of this project; `router` and `loadtest` import it.
"""

import os


def _import_numpy() -> None:
    """Import numpy without OpenBLAS's threads: one per core, and nothing here multiplies matrices.

    The variable is set for the import only, because workers that this process starts inherit the environment.
    """
    given = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = given or "1"
    try:
        import numpy  # noqa: F401
    finally:
        if given is None:
            del os.environ["OPENBLAS_NUM_THREADS"]


_import_numpy()
