import json

import pytest

from loadtest.workload.errors import WorkloadError
from loadtest.workload.source import parse_source


def test_a_file_is_a_trace(tmp_path):
    path = tmp_path / "odd:name=1"
    path.write_text(json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 9]}))
    source = parse_source(str(path))
    assert source.draw(0, 1.0).calls == 1
    with pytest.raises(WorkloadError, match=r"absent\.jsonl cannot be read"):
        parse_source(str(tmp_path / "absent.jsonl"))


def test_a_generator_is_named_with_what_differs():
    source = parse_source("generator:rag:documents=50, skew=0.5,")
    assert source.name == "rag:documents=50, skew=0.5,"
    assert source.draw(0, 30.0).calls > 60


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("chatter", r"no generator 'chatter'; there are shared_prefixes, multi_turn, agents"),
        ("rag:colour=3", r"generator rag has no parameter 'colour'; it has rate_per_s, .*documents, .*limit_tokens$"),
        ("rag:documents", r"generator rag: 'documents' is not key=value"),
        ("rag:documents=1,documents=2", r"generator rag: documents is given twice"),
        ("rag:documents=few", r"generator rag: Expected `int`, got `str` - at `\$.documents`"),
        ("rag:documents=0", r"generator rag: Expected `int` >= 1 - at `\$.documents`"),
        ("rag:documents=2.5", r"generator rag: Expected `int`, got .* - at `\$.documents`"),
        ("rag:skew=nan", r"generator rag: Expected `float` .* - at `\$.skew`"),
        ("rag:rate_per_s=inf", r"generator rag: Expected `float` <= .* - at `\$.rate_per_s`"),
        ("rag:rate_per_s=0", r"generator rag: Expected `float` > 0.* - at `\$.rate_per_s`"),
        ("rag:documents=4", r"generator rag: high_retrieved is 6, more than documents, 4"),
        ("agents:low_turns=200", r"generator agents: low_turns is 200, more than high_turns, 100"),
        ("agents:tool_gap_p50_s=20", r"generator agents: tool_gap_p50_s is 20, more than tool_gap_p90_s, 13.6"),
        ("shared_prefixes:groups=2000,prompts=2000", r"groups times prompts is 4,000,000, more than 1,000,000"),
        ("no_reuse:burst=11", r"generator no_reuse: burst times burst_share is 1.1, more than 1"),
    ],
)
def test_a_wrong_generator_is_refused_by_name(text, complaint):
    with pytest.raises(WorkloadError, match=complaint):
        parse_source(f"generator:{text}")
