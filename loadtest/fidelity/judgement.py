"""The second check: profiles against recordings of vLLM on a real GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from backends.engine.profile import Profile, load_profile
from loadtest.fidelity.comparison import Quantile, missed, quantiles
from loadtest.fidelity.fit import fit
from loadtest.fidelity.recording import RecordedRequest, Recording, read_recording
from loadtest.fidelity.replay import replay

PROFILES = MappingProxyType(
    {"meta-llama/Llama-3.1-8B": "llama-3.1-8b-rtxpro6000", "Qwen/Qwen3-32B": "qwen3-32b-2xrtxpro6000"}
)
"""Packaged profiles that were fitted to these recordings, by recorded model."""
START = "qwen3-32b-2xh100"
"""Initial profile of a fit for a model that has none."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A recording's requests compared with the model's.

    `part` names the compared requests. `*_error` are means over the relative errors of the requests. `profile` has the
    costs that were used.
    """

    name: str
    part: str
    async_scheduling: bool
    times: tuple[Quantile, ...]
    ttft_error: float
    tpot_error: float
    profile: Profile

    @property
    def failures(self) -> list[str]:
        return missed(self.times) if self.async_scheduling else []


def training(recording: Recording) -> range:
    """Return the indices of the requests that a fit may read: every other one."""
    return range(0, len(recording.requests), 2)


def judge(name: str, recording: Recording, profile: Profile, *, async_scheduling: bool) -> Judgement:
    """Replay `recording` with `profile`, and compare the requests that the fit did not read."""
    played = replay(recording, profile, async_scheduling=async_scheduling)
    reference, modelled = recording.requests[1::2], played.modelled(recording.requests)[1::2]
    return Judgement(
        name=name.removeprefix("llmservingsim_vllm_"),
        part=f"{len(reference)} of {len(recording.requests)}, held out",
        async_scheduling=async_scheduling,
        times=quantiles(reference, modelled),
        ttft_error=_mean_error([one.ttft_s for one in reference], [one.ttft_s for one in modelled]),
        tpot_error=_mean_error(_tpots(reference), _tpots(modelled)),
        profile=profile,
    )


def judge_folder(folder: Path, names: Sequence[str], *, refit: bool) -> list[Judgement]:
    """Judge each recording with its packaged profile, or with a new fit if there is none or `refit` is set.

    With a new fit, the result also has a fit without async scheduling. It shows the error of a model without it.

    Raises:
        RecordingError: a recording cannot be read.
    """
    found = []
    for name in names:
        recording = read_recording(folder, name)
        packaged = PROFILES.get(recording.model)
        start = _start(recording, packaged)
        if packaged and not refit:
            found.append(judge(name, recording, start, async_scheduling=True))
            continue
        for ahead in (True, False) if refit else (True,):
            fitted = fit(recording, start, training(recording), async_scheduling=ahead)
            found.append(judge(name, recording, fitted, async_scheduling=ahead))
    return found


def _start(recording: Recording, packaged: str | None) -> Profile:
    profile = load_profile(packaged or START)
    return profile if packaged else replace(profile, model=recording.model)


def _tpots(requests: Sequence[RecordedRequest]) -> list[float]:
    return [request.tpot_s or 0.0 for request in requests]


def _mean_error(reference: Sequence[float], modelled: Sequence[float]) -> float:
    errors = [abs(ours / theirs - 1.0) for theirs, ours in zip(reference, modelled, strict=True) if theirs > 0]
    return sum(errors) / len(errors) if errors else 0.0
