"""Logging: one event per line, as text or as a JSON object.

Events are short constant phrases, and variable parts are fields: ``log.info("worker ready", extra={"worker": id})``.
Prompts, bodies, headers and keys are never fields. A value passed under one of those names is withheld.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from router.telemetry.log_writer import LogWriter

ROOT = "warmroute"
Level = Literal["debug", "info", "warning", "error"]
_LEVELS: dict[Level, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_python = logging.getLogger(f"{ROOT}.python")

WITHHELD_FIELDS = frozenset(
    {"api_key", "authorization", "body", "cookie", "headers", "key", "messages", "prompt", "token", "token_ids"}
)

_OWN_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {logging.DEBUG: 2, logging.WARNING: 33, logging.ERROR: 31}
"""ANSI codes by level: dim, yellow, red."""
_PLAIN = re.compile(r"[\w.:/@#%+,*\[\]()-]+")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields given as ``extra``, without content that must not be logged."""
    return {
        name: "[withheld]" if name in WITHHELD_FIELDS else value
        for name, value in vars(record).items()
        if name not in _OWN_ATTRIBUTES
    }


class JsonFormatter(logging.Formatter):
    """``{"ts", "level", "logger", "event", ...fields, "traceback"?}``, one line."""

    def format(self, record: logging.LogRecord) -> str:
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
    """``TIME LEVEL logger: event field=value``; a traceback follows on its own lines. `coloured`: for a terminal."""

    def __init__(self, *, coloured: bool = False) -> None:
        super().__init__()
        self.coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return one line. Control characters are escaped, so that no value can forge a line."""
        fields = "".join(f" {name}={_text(value)}" for name, value in fields_of(record).items())
        event = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        level = f"{record.levelname:<7}"
        if self.coloured and record.levelno in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelno]}m{level}\x1b[0m"
        line = f"{_timestamp(record)} {level} {record.name}: {event}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class EventHandler(logging.Handler):
    """Format records where they are logged, and let a `LogWriter` thread write them.

    The class is separate so that `setup_logging` replaces only Warmroute's handlers.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.writer = LogWriter(stream, self._dropped_line)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.writer.put(self.format(record))
        except Exception:
            self.writer.put(f"a log record could not be formatted: {record.name}, {record.msg!r}")

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
        super().close()

    def _dropped_line(self, count: int) -> str:
        fields = {"name": f"{ROOT}.logs", "levelno": logging.WARNING, "levelname": "WARNING", "lines": count}
        record = logging.makeLogRecord({"msg": "log lines dropped", **fields})
        self.filter(record)  # this formatter adds the index of the process
        return self.format(record)


def setup_logging(
    level: str,
    log_format: Literal["auto", "text", "json"] = "text",
    stream: TextIO | None = None,
    *,
    process: int | None = None,
) -> None:
    """Log to `stream` (stderr): Warmroute's events from `level`, and events of libraries from warning. No call blocks.

    `auto` is text on a terminal, and else JSON. Text on a terminal has colours, unless NO_COLOR is set. Each line
    of one of several processes has its `process_index`.
    """
    stream = stream if stream is not None else sys.stderr
    handler = EventHandler(stream)
    if process is not None:
        handler.addFilter(_naming(process))
    handler.setFormatter(_formatter(log_format, terminal=stream.isatty()))
    root = logging.getLogger()
    for old in _installed():
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level.upper())


def _formatter(log_format: Literal["auto", "text", "json"], *, terminal: bool) -> logging.Formatter:
    if log_format == "json" or (log_format == "auto" and not terminal):
        return JsonFormatter()
    return TextFormatter(coloured=terminal and not os.environ.get("NO_COLOR"))


def on_terminal() -> bool:
    """Return whether the log is text with colours on a terminal."""
    formatters = [handler.formatter for handler in _installed()]
    return any(isinstance(formatter, TextFormatter) and formatter.coloured for formatter in formatters)


def log_level() -> Level:
    """Return the lowest level of Warmroute's events that is logged."""
    level = logging.getLogger(ROOT).getEffectiveLevel()
    return max((name for name in _LEVELS if _LEVELS[name] <= max(level, logging.DEBUG)), key=_LEVELS.__getitem__)


def set_log_level(level: Level) -> None:
    """Log Warmroute's events from `level`, from now on."""
    logging.getLogger(ROOT).setLevel(_LEVELS[level])


def lines_dropped() -> int:
    """Return the log lines of this process that could not be written."""
    return sum(handler.writer.lines_dropped for handler in _installed())


def say(text: str) -> None:
    """Write a message for people to stderr, without blocking once logging is set up."""
    handlers = _installed()
    if not handlers:
        sys.stderr.write(f"{text}\n")
    for handler in handlers:
        with handler.lock or nullcontext():
            handler.writer.put(text)


def log_interpreter_messages() -> None:
    """Log Python's own messages to stderr: warnings, and uncaught exceptions in threads and finalizers.

    Python writes them synchronously, and would block with the sink.
    """
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _not_raised


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread is not None else "unknown"
    where = {"thread_name": name}
    if failure.exc_value is not None and not isinstance(failure.exc_value, SystemExit):
        _python.error("thread failed", extra=where, exc_info=failure.exc_value)


def _not_raised(failure: sys.UnraisableHookArgs) -> None:
    where = {"where": repr(failure.object), "reason": failure.err_msg or ""}
    _python.error("exception ignored", extra=where, exc_info=failure.exc_value)


def _installed() -> list[EventHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, EventHandler)]


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
