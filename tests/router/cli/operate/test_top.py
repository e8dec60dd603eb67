"""The fleet in a terminal: what its stream of events tells, and how the terminal shows it."""

import argparse
import io

import pytest
from rich.console import Console

from router.cli.operate import top
from router.cli.operate.top import parsed

ROW = {
    "id": "a:1", "worker": "a:1", "name": None, "state": "ready", "role": "mixed", "residency": "exact", "in_flight": 3,
    "queue_wait_s": 0.25, "kv_usage": 0.5, "idle_share": 0.1, "cached_share": 0.75, "ttft_s": 0.12, "gap_s": 0.011,
    "prefill_tokens_per_s": 31_000.0,
}  # fmt: skip


def drawn(fleet, most=10):
    console = Console(file=io.StringIO(), width=200)
    console.print(fleet.shown(most))
    return console.file.getvalue()


def test_lines_become_events_and_comments_none():
    lines = [
        b"event: snapshot\n",
        b'data: {"rows":[]}\n',
        b"\n",
        b": heartbeat\n",
        b"\n",
        b"event: end\r\n",
        b"data: 1\r\n",
    ]
    assert list(parsed(lines)) == [("snapshot", {"rows": []}), ("end", 1)]


def test_rows_follow_the_events():
    fleet = top.FollowedFleet()
    fleet.heard("snapshot", {"rows": [ROW, {**ROW, "id": "b:1"}]})
    fleet.heard("changed", {**ROW, "state": "unhealthy"})
    fleet.heard("added", {**ROW, "id": "c:1", "name": "third"})
    fleet.heard("removed", {"id": "b:1"})
    fleet.heard("skipped", {"detail": "no row"})
    text = drawn(fleet)
    assert "2 workers: 1 ready, 1 unhealthy" in text and "third" in text and "b:1" not in text
    for shown in ("250 ms", "50.0%", "10.0%", "75.0%", "120 ms", "11 ms", "31,000"):
        assert shown in text


def test_the_busiest_rows_come_first_and_the_rest_is_counted():
    fleet = top.FollowedFleet()
    fleet.heard("snapshot", {"rows": [{**ROW, "id": f"w{number}:1", "in_flight": number} for number in range(30)]})
    text = drawn(fleet, most=5)
    assert text.index("w29:1") < text.index("w25:1")
    assert "w24:1" not in text and "and 25 more with fewer requests" in text


@pytest.mark.parametrize("name", ["end", "cut"])
def test_it_draws_each_event_and_ends_with_the_stream(monkeypatch, capsys, name):
    monkeypatch.setattr("router.cli.operate.top.events", lambda *_: iter([("snapshot", {"rows": [ROW]}), (name, {})]))
    monkeypatch.setattr(top, "_diagnose", lambda *_: None)
    console = Console(file=io.StringIO(), force_terminal=True, width=150, height=30)
    assert top._follow(argparse.Namespace(), console, top.FollowedFleet()) == 1
    assert "a:1" in console.file.getvalue()
    assert "the stream has ended" in capsys.readouterr().err


def test_classes_are_shown_with_their_largest_tenants():
    fleet = top.FollowedFleet()
    tenants = {f"t{number}": number for number in range(1, 8)}
    batch = {
        "request_class": "batch",
        "waiting": 28,
        "work_s": 3.5,
        "tenants": tenants,
        "refused": 2,
        "level_share": None,
    }
    fleet.classes = [batch | {"request_class": "chat", "waiting": 0, "tenants": {"": 1}, "level_share": 0.9}, batch]
    shown = Console(width=160, record=True, file=io.StringIO())
    shown.print(fleet.shown(5))
    text = shown.export_text()
    assert "t7 7, t6 6, t5 5, t4 4, t3 3, and 2 more" in text and "no key 1" in text
    assert "90" in text and text.index("chat") < text.index("batch")
