import http.server
import os
import threading

import pytest

from loadtest.load import endurance
from loadtest.load.endurance import Endurance, growth, rss_bytes
from loadtest.load.records import Record
from loadtest.workload.errors import WorkloadError


def run(folder, windows, ttft_s=lambda window: 0.1, **fields):
    """Play windows of a minute with ten requests each; return what was written."""
    one = Endurance(folder, 60.0, {}, fields.get("watched"))
    one.tick(0.0)
    for window in range(windows):
        for number in range(10):
            at_s = window * 60.0 + number
            times = {"intended_s": at_s, "sent_s": at_s, "ended_s": at_s + 1}
            one.hear(Record(id="", kind="", turn=1, token_s=[at_s + ttft_s(window)], completion_tokens=1, **times))
        one.tick((window + 1) * 60.0)
    one.close(windows * 60.0)
    return one


def test_a_run_that_stopped_goes_on(tmp_path):
    first = run(tmp_path, 3)
    with (tmp_path / "windows.jsonl").open("ab") as file:
        file.write(b'{"end_s": 2')  # the machine went down while this line was written
    second = run(tmp_path, 2)
    assert (first.begun_s, second.begun_s, second.resumed) == (0.0, 180.0, 3)
    assert [one.end_s for one in second.windows] == [60.0, 120.0, 180.0, 240.0, 300.0]
    assert sum(one.requests for one in second.windows) == 50
    assert run(tmp_path, 1).resumed == 5
    assert len(list(tmp_path.glob("records-*.jsonl"))) == 3


def test_records_rotate_and_old_files_go(tmp_path, monkeypatch):
    monkeypatch.setattr(endurance, "FILE_BYTES", 1_000)
    run(tmp_path, 20)
    files = sorted(tmp_path.glob("records-*.jsonl"))
    assert len(files) == endurance.FILES and all(path.stat().st_size < 2_000 for path in files)


def test_slopes_are_per_hour_with_their_intervals(tmp_path):
    sheet = growth(run(tmp_path, 30, ttft_s=lambda window: 0.1 + window * 0.001, watched=str(os.getpid())).windows)
    rows = {row[0]: row[1:] for row in sheet.rows}
    assert rows["TTFT p50, ms"] == ("100.0", "129.0", "+60.00 ± 0.00")
    assert rows["RSS, MiB"][2].endswith(" ± 0.00") or float(rows["RSS, MiB"][0].replace(",", "")) > 1.0


def test_few_windows_have_no_slope(tmp_path):
    sheet = growth(run(tmp_path, 5).windows)
    assert sheet.rows == () and "slopes need 12 windows" in sheet.note


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "windows.jsonl").write_text("hello\n")
    with pytest.raises(WorkloadError, match="no list of windows"):
        run(tmp_path, 1)


def test_memory_is_read_from_a_page_of_metrics_too():
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# HELP a b\nprocess_resident_memory_bytes 1.5e+06\n")

        def log_message(self, *arguments): ...

    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert rss_bytes(f"http://127.0.0.1:{server.server_port}/metrics") == 1_500_000
        server.shutdown()
    assert rss_bytes(f"http://127.0.0.1:{server.server_port}/metrics") is None
    assert rss_bytes(str(os.getpid())) > 10**6 and rss_bytes("999999999") is None
