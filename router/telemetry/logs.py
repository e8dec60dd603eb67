"""Logging: one event per line, as text or as a JSON object.

Events are short constant phrases; what varies goes into fields: ``log.info("worker ready", extra={"worker": id})``.
Prompts, bodies, headers and keys are never fields; should one be passed under such a name, its value is withheld.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

ROOT = "warmroute"

WITHHELD_FIELDS = frozenset(
    {"api_key", "authorization", "body", "cookie", "headers", "key", "messages", "prompt", "token", "token_ids"}
)

_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = re.compile(r"[\w.:/@#%+,*\[\]()-]+")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields given as ``extra``, contents that must not be logged replaced."""
    return {
        name: "[withheld]" if name in WITHHELD_FIELDS else value
        for name, value in vars(record).items()
        if name not in _OWN_ATTRIBUTES
    }


class JsonFormatter(logging.Formatter):
    """``{"ts", "level", "logger", "event", ...fields, "traceback"?}``, one line."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object."""
        event: dict[str, Any] = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        event.update((name, value) for name, value in fields_of(record).items() if name not in event)
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """``TIME LEVEL logger: event field=value``; a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line. Control characters are escaped, so that no value can forge a line."""
        fields = "".join(f" {name}={_text(value)}" for name, value in fields_of(record).items())
        event = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{_timestamp(record)} {record.levelname:<7} {record.name}: {event}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class EventHandler(logging.StreamHandler[TextIO]):
    """The handler that `setup_logging` installs; a class of its own so that it finds and replaces its own only."""


def setup_logging(
    level: str,
    log_format: Literal["text", "json"] = "text",
    stream: TextIO | None = None,
    *,
    process: int | None = None,
) -> None:
    """Send everything to `stream` (stderr) once; ours from `level` on, libraries' from warning on.

    One process of several is named in each of its lines, as `process_index`.
    """
    handler = EventHandler(stream if stream is not None else sys.stderr)
    if process is not None:
        handler.addFilter(_naming(process))
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, EventHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())


def _naming(process: int) -> Callable[[logging.LogRecord], bool]:
    def name(record: logging.LogRecord) -> bool:
        record.process_index = process
        return True

    return name


def _timestamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=True)
