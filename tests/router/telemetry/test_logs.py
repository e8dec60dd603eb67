import io
import json
import logging

import pytest

from router.telemetry.logs import EventHandler, setup_logging


@pytest.fixture
def stream():
    root = logging.getLogger()
    before = root.level
    yield io.StringIO()
    for handler in [handler for handler in root.handlers if isinstance(handler, EventHandler)]:
        root.removeHandler(handler)
    root.setLevel(before)
    logging.getLogger("warmroute").setLevel(logging.NOTSET)


def test_text_shows_event_and_fields(stream):
    setup_logging("info", "text", stream)
    logging.getLogger("warmroute.watch").info("worker ready", extra={"worker": "127.0.0.1:9", "reason": "all well"})
    line = stream.getvalue()
    assert line.endswith('INFO    warmroute.watch: worker ready worker=127.0.0.1:9 reason="all well"\n')


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


def test_libraries_from_warning_on_and_levels(stream):
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
