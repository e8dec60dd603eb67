"""``python -m loadtest fit-profile``: fit an engine profile's step costs to a recording of vLLM on a real GPU.

A recording is NAME.meta.json beside NAME.requests.jsonl.zst, as LLMServingSim's bench writes them. The fit reads every
other request. The command prints the costs as a profile has them, and the errors of the other requests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from backends.engine.profile import Profile, load_profile, profile_names
from loadtest.calibrate.recordings.fit import fit
from loadtest.calibrate.recordings.recording import RecordedRequest, RecordingError, read_recording
from loadtest.calibrate.recordings.replay import replay
from loadtest.report.summary import percentile


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recording", type=Path, metavar="NAME.meta.json", help="the recording")
    parser.add_argument(
        "--start", choices=profile_names(), default="qwen3-32b-2xh100", help="first profile (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Fit and print; return 1 if the recording cannot be read."""
    try:
        recording = read_recording(args.recording)
    except RecordingError as error:
        sys.stderr.write(f"fit-profile: {error}\n")
        return 1
    fitted = fit(recording, load_profile(args.start), range(0, len(recording.requests), 2))
    print(f'model = "{recording.model}"\n\n{costs(fitted)}\n')
    modelled = replay(recording, fitted).requests[1::2]
    for line in errors(recording.requests[1::2], modelled):
        print(f"# {line}")
    return 0


def costs(profile: Profile) -> str:
    prefill, decode = profile.prefill, profile.decode
    return (
        f"[prefill]\na_ms = {prefill.a_ms:.2f}\nb_us = {prefill.b_us:.2f}\nd_ns = {prefill.d_ns:.4f}\n\n"
        f"[decode]\na_ms = {decode.a_ms:.2f}\nb_ms = {decode.b_ms:.4f}\nk_ns = {decode.k_ns:.2f}"
    )


def errors(recorded: Sequence[RecordedRequest], modelled: Sequence[RecordedRequest]) -> list[str]:
    """Return one line per quantile: the recorded and the modelled time, and the relative error."""
    lines = []
    for name in ("ttft_s", "tpot_s"):
        theirs, ours = ([t for one in side if (t := getattr(one, name)) is not None] for side in (recorded, modelled))
        for share in (0.5, 0.9):
            real, model = percentile(theirs, share) * 1e3, percentile(ours, share) * 1e3
            lines.append(
                f"{name[:4].upper()} p{share * 100:.0f} of {len(theirs)} requests that the fit has not read: "
                f"{real:,.1f} ms, model {model:,.1f} ms ({model / real - 1:+.1%})"
            )
    return lines
