"""`warmroute load` beside `vllm bench serve`, on the same clock worker with the same prompts.

The tools take turns, and the best of their rounds are compared: what disturbs a run only makes it slower. Requests come
one at a time, because a prefill beside another stream waits for the rest of its step: its time is a matter of chance.
Prompts are long, so that the clients' own milliseconds are less than the difference that is looked for.
"""

import json
import random
import subprocess
import sys

import pytest

from backends.simulated.settings import shipped_model_dir
from loadtest.load.drive import wording_of

pytestmark = [pytest.mark.nightly, pytest.mark.measures]
ROUNDS = 5
TOKENS = 32
CLOSE = 0.02
MEASURES = ("median_ttft_ms", "median_tpot_ms", "median_itl_ms", "median_e2el_ms")
COMMON = ("--dataset-name", "custom", "--disable-shuffle", "--ignore-eos", "--num-prompts", "20")
COMMON += ("--max-concurrency", "1", "--save-result", "--model", "warmroute-simulated")


@pytest.fixture
def prompts(tmp_path):
    wording, rng, path = wording_of(None, 77), random.Random(1), tmp_path / "prompts.jsonl"
    texts = [wording.piece((1 << 62 | number, rng.randint(4_000, 6_000))) for number in range(20)]
    path.write_text("\n".join(json.dumps({"prompt": text, "output_tokens": TOKENS}) for text in texts))
    return path


def measured(server, command, tmp_path):
    server.reset_prefix_cache()
    (tmp_path / "found.json").unlink(missing_ok=True)
    flags = (*COMMON, "--result-dir", str(tmp_path), "--result-filename", "found.json")
    ended = subprocess.run([*command, *flags], capture_output=True, text=True)
    if "install vllm[bench]" in ended.stderr:
        pytest.skip("vllm bench needs pandas")
    assert (tmp_path / "found.json").exists(), ended.stderr
    return json.loads((tmp_path / "found.json").read_text())


def test_the_figures_are_those_of_vllm_bench(vllm, executable, prompts, tmp_path):
    server = vllm(time_scale=4.0)
    bench = [str(executable), "bench", "serve", "--backend", "openai", "--base-url", server.url]
    bench += [
        "--tokenizer",
        str(shipped_model_dir()),
        "--dataset-path",
        str(prompts),
        "--custom-output-len",
        str(TOKENS),
    ]
    bench += ["--skip-chat-template", "--percentile-metrics", "ttft,tpot,itl,e2el"]
    ours = [sys.executable, "-m", "warmroute", "load", server.url, "--dataset-path", str(prompts)]
    rounds = [[measured(server, command, tmp_path) for command in (ours, bench)] for _ in range(ROUNDS)]
    best = [{name: min(each[side][name] for each in rounds) for name in MEASURES} for side in (0, 1)]
    assert best[0] == pytest.approx(best[1], rel=CLOSE), best
