"""`warmroute load` beside `vllm bench serve`, on the same clock worker with the same prompts.

The tools take turns, and the best of their rounds are compared: what disturbs a run only makes it slower.
"""

import json
import random
import subprocess
import sys

import pytest

from backends.simulated.settings import shipped_model_dir
from loadtest.load.drive import wording_of

pytestmark = [pytest.mark.nightly, pytest.mark.measures]
ROUNDS = 4
CLOSE = 0.02
MEASURES = ("median_ttft_ms", "median_tpot_ms", "median_itl_ms", "median_e2el_ms")
COMMON = ("--dataset-name", "custom", "--disable-shuffle", "--ignore-eos", "--num-prompts", "40")
COMMON += ("--max-concurrency", "2", "--save-result", "--model", "warmroute-simulated")


@pytest.fixture
def prompts(tmp_path):
    wording, rng, path = wording_of(None, 77), random.Random(1), tmp_path / "prompts.jsonl"
    texts = [wording.piece((1 << 62 | number, rng.randint(200, 900))) for number in range(40)]
    path.write_text("\n".join(json.dumps({"prompt": text, "output_tokens": 64}) for text in texts))
    return path


def measured(command, tmp_path):
    flags = (*COMMON, "--result-dir", str(tmp_path), "--result-filename", "found.json")
    ended = subprocess.run([*command, *flags], capture_output=True, text=True)
    if "install vllm[bench]" in ended.stderr:
        pytest.skip("vllm bench needs pandas")
    assert (tmp_path / "found.json").exists(), ended.stderr
    return json.loads((tmp_path / "found.json").read_text())


def test_the_figures_are_those_of_vllm_bench(vllm, executable, prompts, tmp_path):
    server = vllm(time_scale=4.0)
    bench = [str(executable), "bench", "serve", "--backend", "openai", "--base-url", server.url]
    bench += ["--tokenizer", str(shipped_model_dir()), "--dataset-path", str(prompts), "--custom-output-len", "64"]
    bench += ["--skip-chat-template", "--percentile-metrics", "ttft,tpot,itl,e2el"]
    ours = [sys.executable, "-m", "warmroute", "load", server.url, "--dataset-path", str(prompts)]
    measured(bench, tmp_path)  # both find the prompts in the cache
    rounds = [(measured(ours, tmp_path), measured(bench, tmp_path)) for _ in range(ROUNDS)]
    best = [{name: min(each[side][name] for each in rounds) for name in MEASURES} for side in (0, 1)]
    assert best[0] == pytest.approx(best[1], rel=CLOSE), best
