"""Steps that no calibration measures, by a found profile and by the planted one."""

from __future__ import annotations

import random

from backends.engine.profile import Profile
from backends.engine.timing import StepTiming
from loadtest.calibrate.readings import chunk

PROMPTS = ((1_000, 0), (5_000, 0), (20_000, 0), (1_000, 16_000))
DECODES = ((4, 1_000), (16, 2_000), (48, 1_500), (60, 3_000))


def held_out_errors(found: Profile, planted: Profile, time_scale: float) -> dict[str, float]:
    """Return the largest relative error of prompts, decode steps and mixed steps. `time_scale` slows `planted` down."""
    ours, theirs = StepTiming(found, random.Random(0)), StepTiming(planted, random.Random(0), speed=1 / time_scale)

    def worst(*steps: tuple[list[tuple[int, int]], int, int]) -> float:
        return max(abs(_steps_s(ours, step, found) / _steps_s(theirs, step, found) - 1) for step in steps)

    return {
        "prefill": worst(*(([prompt], 0, 0) for prompt in PROMPTS)),
        "decode": worst(*(([], sequences, sequences * context) for sequences, context in DECODES)),
        "mixed": worst(([(3_000, 2_000)], 16, 32_000), ([(1_000, 0)], 32, 32_000)),
    }


def _steps_s(timing: StepTiming, step: tuple[list[tuple[int, int]], int, int], limits: Profile) -> float:
    prompts, decodes, context = step
    if decodes:
        return timing.step_s(prompts, decodes, context)
    chunks = [part for new, cached in prompts for part in chunk(new, cached, limits.max_num_batched_tokens)]
    return sum(timing.step_s([part], 0, 0) for part in chunks)
