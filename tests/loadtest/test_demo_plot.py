import argparse
import subprocess
import sys
from xml.etree import ElementTree

from loadtest.demo.command import register
from loadtest.demo.compare import repeating
from loadtest.demo.plot import draw
from loadtest.report.summary import Row

SVG = "{http://www.w3.org/2000/svg}"


def row(policy: str, ttft_mean_ms: float) -> Row:
    return Row(policy, 300, 0, ttft_mean_ms, 0.0, 0.0, 0.0, 0.0, 0.5, 1000)


def texts(path) -> list[str]:
    root = ElementTree.fromstring(path.read_bytes())  # the file was written a line ago
    return ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]


def test_the_chart_names_both_policies_their_means_and_the_command(tmp_path):
    path = tmp_path / "demo.svg"
    draw(path, [row("round_robin", 223.6), row("marginal_cost", 108.2)], "4 workers", "warmroute demo --plot demo.svg")
    found = texts(path)
    assert {"round robin", "Warmroute", "224", "108 (0.48 x)", "warmroute demo --plot demo.svg"} <= set(found)
    assert "4 workers" in " ".join(found)


def test_equal_rows_give_an_equal_file(tmp_path):
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        draw(path, [row("round_robin", 200.0), row("lpwl", 100.0)], "4 workers", "warmroute demo")
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_caption_repeats_changed_flags_and_no_folders():
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    args = parser.parse_args(["demo", "--seed", "3", "--time-scale", "2", "--plot", "/tmp/some.svg", "--keep"])
    assert repeating(args) == "warmroute demo --time-scale 2.0 --seed 3 --plot some.svg"


def test_plot_without_matplotlib_is_refused_before_anything_starts(tmp_path):
    hidden = "import sys; sys.modules['matplotlib'] = None; import warmroute; raise SystemExit(warmroute.main())"
    command = [sys.executable, "-c", hidden, "demo", "--plot", str(tmp_path / "demo.svg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert "pip install 'matplotlib>=3.9'" in done.stderr
    assert done.stdout == ""
