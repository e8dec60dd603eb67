"""Records the KV events that vLLM's own cache publishes for prompts with images, without a model.

    .venv-vllm/bin/python tests/router/residency/recorded/record_multimodal.py multimodal-VERSION.json

Requests with placeholder tokens and image identifiers go through vLLM's block hashing and cache; what its event
publisher would put on the wire is written down, one payload per request, with what each request found cached.
"""

import inspect
import json
import sys
from pathlib import Path

import msgspec
import torch
import vllm
from vllm.distributed.kv_events import KVEventBatch
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK = 16
IMAGE = 9
"""The placeholder's token id."""
TEXT = list(range(100, 140))
END = list(range(200, 240))
CAT, DOG = "cat" * 10, "dog" * 10
REQUESTS = {
    "a cat": (TEXT, CAT, END),
    "a cat again, with another end": (TEXT, CAT, [*END[:20], 7, 7, 7]),
    "a dog in its place": (TEXT, DOG, END),
    "placeholders without an image": (TEXT, None, END),
    "a cat that begins earlier": (TEXT[:37], CAT, END),
    "two images": (TEXT, CAT, [*END[:4]], DOG, END),
}
LENGTH = 50


def request(name, pieces):
    tokens, features = [], []
    for piece in pieces:
        if isinstance(piece, list):
            tokens += piece
            continue
        if piece is not None:
            place = PlaceholderRange(offset=len(tokens), length=LENGTH)
            features.append(MultiModalFeatureSpec(data=None, modality="image", identifier=piece, mm_position=place))
        tokens += [IMAGE] * LENGTH
    hasher = get_request_block_hasher(BLOCK, sha256)
    params = SamplingParams(max_tokens=1)
    made = Request(name, tokens, params, None, mm_features=features or None, block_hasher=hasher)
    images = [{"identifier": f.identifier, "offset": f.mm_position.offset, "length": LENGTH} for f in features]
    return made, {"name": name, "tokens": tokens, "images": images}


def main():
    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    config = KVCacheConfig(num_blocks=40, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    wanted = {"max_model_len": 4096, "scheduler_block_size": BLOCK, "hash_block_size": BLOCK}
    known = inspect.signature(KVCacheManager).parameters
    manager = KVCacheManager(
        config, enable_kv_cache_events=True, **{name: value for name, value in wanted.items() if name in known}
    )
    encode = msgspec.msgpack.Encoder().encode
    recorded = []
    for name, pieces in REQUESTS.items():
        made, sent = request(name, pieces)
        blocks, cached = manager.get_computed_blocks(made)[:2]
        manager.allocate_slots(made, made.num_tokens - cached, cached, blocks)
        payload = encode(KVEventBatch(ts=1.0, events=manager.take_events(), data_parallel_rank=0))
        recorded.append({**sent, "cached_tokens": cached, "payload": payload.hex()})
        manager.free(made)
    rows = ",\n".join(map(json.dumps, recorded))
    Path(sys.argv[1]).write_text(f'{{"vllm": "{vllm.__version__}", "block_size": {BLOCK}, "requests": [\n{rows}\n]}}\n')


main()
