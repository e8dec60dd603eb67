"""The child process: `python -m router.hub.fetch ORG/MODEL` downloads a model's tokenizer files.

It writes one JSON object: `folder`, or `problem` and `lasting` (whether to ask again soon is no use). Hugging Face's
environment variables apply: HF_HOME, HF_ENDPOINT, HF_TOKEN and so on.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

NEEDED = "tokenizer.json"
FILES = (
    NEEDED,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "chat_template.jinja",
)
"""What vLLM reads of a model to render and tokenise its prompts. Nothing else is downloaded."""
NATIVE = "tekken.json"
"""With this file vLLM may use Mistral's own tokenizer, which a worker knows."""
MOST_FILE_BYTES = 64 << 20
"""The largest tokenizer.json in use, Gemma's, has 35 MB."""
FETCH_S = 300
"""A limit of the whole download: 35 MB in this time are 1 Mbit/s."""
_SHOWN = 300
_DENIED = (401, 403)
T = TypeVar("T")


class _FetchError(Exception):
    """The files do not come; the message says why. `lasting`: they do not come soon either."""

    def __init__(self, problem: str, *, lasting: bool) -> None:
        super().__init__(problem)
        self.lasting = lasting


def main(name: str) -> dict[str, Any]:
    """Download the files of `name`. Return what the child writes."""
    signal.alarm(FETCH_S + 5)  # the parent may have died
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    os.environ.setdefault("HF_HUB_DISABLE_XET", "1")  # its own cache of chunks has no bound here
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        if _size(name, NATIVE) is not None:
            raise _FetchError(f"{name} has Mistral's own tokenizer, which its workers use", lasting=True)
        folder = None
        for file in FILES:
            folder = _fetched(name, file) or folder
        assert folder is not None, "the needed file was fetched or an error raised"
        return {"folder": str(folder)}
    except _FetchError as error:
        return {"problem": str(error)[:_SHOWN], "lasting": error.lasting}
    except OSError as error:
        return {"problem": _of_system(error)[:_SHOWN], "lasting": False}


def _fetched(name: str, file: str) -> Path | None:
    """Download a file; return its folder, or None if the model has none and needs none."""
    from huggingface_hub import hf_hub_download

    size_bytes = _size(name, file)
    if size_bytes is None:
        if file == NEEDED:
            raise _FetchError(f"{name} has no {NEEDED} on the hub", lasting=True)
        return None
    if size_bytes > MOST_FILE_BYTES:
        raise _FetchError(f"{file} of {name} has {size_bytes} bytes; at most {MOST_FILE_BYTES} are read", lasting=True)
    return Path(_asked(name, lambda: hf_hub_download(name, file))).parent


def _size(name: str, file: str) -> int | None:
    """Return the size of a file that the hub names, 0 if it names none; None if the model has no such file."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        return _asked(name, lambda: get_hf_file_metadata(hf_hub_url(name, file))).size or 0
    except FileNotFoundError:
        return None


def _asked(name: str, ask: Callable[[], T]) -> T:
    """Return the hub's answer.

    Raises:
        FileNotFoundError: the model has no such file.
        _FetchError: for everything else that the hub says.
    """
    from huggingface_hub import errors

    try:
        return ask()
    except (errors.GatedRepoError, errors.RepositoryNotFoundError):
        raise _FetchError(f"the hub has no model {name}, or HF_TOKEN may not read it", lasting=True) from None
    except errors.LocalEntryNotFoundError:
        raise _FetchError(f"{_endpoint()} does not answer", lasting=False) from None
    except errors.EntryNotFoundError:
        raise FileNotFoundError from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status == 404:
            raise FileNotFoundError from None
        if status in _DENIED:
            raise _FetchError(f"the hub answered {status}: HF_TOKEN may not read {name}", lasting=True) from None
        raise _FetchError(f"{_endpoint()} answered {status}", lasting=False) from None
    except OSError:
        raise
    except Exception as error:  # of the HTTP library, which differs between versions
        raise _FetchError(f"{_endpoint()}: {type(error).__name__}: {error}", lasting=False) from None


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _of_system(error: OSError) -> str:
    if error.errno == errno.EFBIG:
        return f"a file has more than {MOST_FILE_BYTES} bytes"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"cannot write to {error.filename}: mount a folder for it, or set HF_HOME to one"
    if error.errno is None:  # connection errors of the requests library are OSErrors
        return f"{_endpoint()}: {type(error).__name__}: {error}"
    return f"{error.strerror}: {error.filename}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])))
