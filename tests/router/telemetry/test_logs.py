import io
import json
import logging
import subprocess
import sys

import pytest

from router.telemetry.logs import EventHandler, on_terminal, say, setup_logging


class Stream(io.StringIO):
    """A sink whose value is asked for once everything has been written."""

    def getvalue(self):
        for handler in logging.getLogger().handlers:
            handler.flush()
        return super().getvalue()


@pytest.fixture
def stream():
    root = logging.getLogger()
    before = root.level
    yield Stream()
    for handler in [handler for handler in root.handlers if isinstance(handler, EventHandler)]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(before)
    logging.getLogger("warmroute").setLevel(logging.NOTSET)


def test_text_shows_event_and_fields(stream):
    setup_logging("info", "text", stream)
    logging.getLogger("warmroute.workers").info("worker ready", extra={"worker": "127.0.0.1:9", "reason": "all well"})
    line = stream.getvalue()
    assert line.endswith('INFO    warmroute.workers: worker ready worker=127.0.0.1:9 reason="all well"\n')


def test_a_value_cannot_forge_a_line(stream):
    setup_logging("info", "text", stream)
    logging.getLogger("warmroute.x").info("odd\nevent", extra={"reason": "a\n2026 ERROR forged"})
    assert stream.getvalue().count("\n") == 1


def test_json_is_one_object_per_event(stream):
    setup_logging("debug", "json", stream)
    log = logging.getLogger("warmroute.x")
    log.debug("event %d", 7, extra={"rank": 3, "why": object})
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("failed", extra={"level": "cannot overwrite"})
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["event"] == "event 7" and first["rank"] == 3 and first["level"] == "debug"
    assert first["ts"].endswith("Z") and first["logger"] == "warmroute.x"
    assert second["level"] == "error" and "ValueError: boom" in second["traceback"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_contents_are_withheld(stream, log_format):
    setup_logging("info", log_format, stream)
    logging.getLogger("warmroute").info(
        "x", extra={"prompt": "SECRET", "headers": {"a": "SECRET"}, "api_key": "SECRET"}
    )
    assert "SECRET" not in stream.getvalue() and "withheld" in stream.getvalue()


def test_libraries_log_from_warning_and_levels_apply(stream):
    setup_logging("warning", "text", stream)
    logging.getLogger("httpx").info("GET ...")
    logging.getLogger("warmroute.x").info("quiet")
    logging.getLogger("some.library").warning("loud")
    assert stream.getvalue().count("\n") == 1 and "loud" in stream.getvalue()


def test_setting_up_twice_logs_once(stream):
    setup_logging("info", "text", io.StringIO())
    setup_logging("info", "text", stream)
    logging.getLogger("warmroute").info("once")
    assert stream.getvalue().count("once") == 1


def test_a_record_that_cannot_be_formatted_is_named(stream, capsys):
    setup_logging("info", "text", stream)
    (handler,) = [each for each in logging.getLogger().handlers if isinstance(each, EventHandler)]
    handler.handle(logging.makeLogRecord({"name": "warmroute.x", "msg": "%d", "args": ("no number",)}))
    assert "could not be formatted: warmroute.x" in stream.getvalue()
    assert capsys.readouterr().err == ""


def test_say_uses_the_log_writer(stream, capsys):
    setup_logging("info", "json", stream)
    say("warmroute serve: cannot listen")
    assert stream.getvalue() == "warmroute serve: cannot listen\n"
    assert capsys.readouterr().err == ""


def test_say_without_logging_writes_to_stderr(capsys):
    say("warmroute serve: cannot listen")
    assert capsys.readouterr().err == "warmroute serve: cannot listen\n"


def test_messages_of_the_interpreter_are_logged():
    program = """
import threading, warnings
from router.telemetry.logs import log_interpreter_messages, setup_logging
setup_logging("info")
log_interpreter_messages()
warnings.warn("mind the step")
thread = threading.Thread(target=lambda: 1 / 0, name="divider")
thread.start()
thread.join()
class Odd:
    def __del__(self):
        raise ValueError("odd end")
Odd()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "WARNING py.warnings:" in ran.stderr and "mind the step" in ran.stderr
    assert "ERROR   warmroute.python: thread failed thread_name=divider" in ran.stderr
    assert "ZeroDivisionError" in ran.stderr
    assert "ERROR   warmroute.python: exception ignored" in ran.stderr and "ValueError: odd end" in ran.stderr


class Terminal(Stream):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("log_format", "terminal", "no_colour", "begins"),
    [
        ("auto", False, "", "{"),
        ("auto", True, "", "\x1b[33mWARNING\x1b[0m"),
        ("auto", True, "1", "WARNING warmroute.x"),
        ("json", True, "", "{"),
        ("text", False, "", "WARNING warmroute.x"),
    ],
)
def test_the_format_follows_the_sink(stream, monkeypatch, log_format, terminal, no_colour, begins):
    monkeypatch.setenv("NO_COLOR", no_colour)
    sink = Terminal() if terminal else stream
    setup_logging("info", log_format, sink)
    logging.getLogger("warmroute.x").warning("odd")
    written = sink.getvalue()
    assert begins in written and (written[0] == "{") == (begins == "{")
    assert on_terminal() == ("\x1b" in begins)
