"""One embedded worker without its HTTP: model folder, engine, clock, metrics and events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Any, Literal

from backends.engine.engine import Engine, StepResult
from backends.engine.profile import Profile, load_profile
from backends.engine.request import EngineRequest, EngineRequestState, FinishReason, RequestRefused
from backends.simulated.capacity import read_capacity
from backends.simulated.deaths import PlannedDeath
from backends.simulated.decoding.detokenizer import AnswerText, Detokenizer
from backends.simulated.decoding.sampler import TokenSampler
from backends.simulated.decoding.sampling import read_sampling, read_stops
from backends.simulated.engine_clock import EngineClock
from backends.simulated.errors import ApiError, unavailable, unknown_model
from backends.simulated.generation import NO_TOKEN, Generation, Inbox, Sampling
from backends.simulated.kv.kv_store import KvStore
from backends.simulated.kv.kv_transfers import KvTransfers
from backends.simulated.kv.kv_waits import WAITING_TRANSFERS
from backends.simulated.kv.peer_tier import PeerTier
from backends.simulated.metrics import WorkerMetrics
from backends.simulated.prompts import PromptReader
from backends.simulated.publisher import EventPublisher
from backends.simulated.request import (
    COMPLETION_MAX_TOKENS,
    ChatBody,
    CompletionBody,
    answer_tokens,
    draw_stop,
)
from backends.simulated.settings import WorkerSettings
from backends.simulated.vocabulary import Vocabulary

_log = logging.getLogger(__name__)

PauseMode = Literal["abort", "wait", "keep"]
VERSION = "0.33.0+simulated"
"""The modelled vLLM version, which /version reports."""


class SimulatedWorker:
    """Take prompts and return `Generation`s, whose tokens arrive in an `Inbox` as modelled time passes.

    Belongs to one event loop: `start` there, `aclose` there.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.prompts = PromptReader(settings.folder, settings.chat_template)
        self._vocabulary = Vocabulary(self.prompts.tokenizer, settings.seed)
        self._eos_id = self.prompts.eos_id
        self._sampler = TokenSampler(
            self._vocabulary,
            settings.seed,
            eos_id=self._eos_id,
            stop_probability=settings.stop_probability,
            character_share=settings.character_share,
        )
        self.started_unix_s = time.time()
        self.sleep_level: int | None = None
        self.pause_mode: PauseMode | None = None
        self.adapters = dict.fromkeys(settings.lora_adapters, "")
        """Path of each LoRA adapter by its name; empty for those of the settings."""
        self.server_load = 0
        self.event_endpoints: tuple[str, str] | None = None
        self.death = PlannedDeath()
        self._silent = False
        self._closed = False
        self._draw_stop = Random(settings.seed + 1).random
        self._numbers = itertools.count()
        self._live: dict[str, Generation] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        profile = load_profile(settings.profile)
        capacity = read_capacity(settings, profile)
        self.max_model_len = capacity.max_model_len
        self.batch_limits = {
            "max_num_batched_tokens": settings.max_num_batched_tokens or profile.max_num_batched_tokens,
            "max_num_seqs": settings.max_num_seqs or profile.max_num_seqs,
        }
        self.engine = self._engine(profile, capacity.num_blocks)
        connector = WAITING_TRANSFERS.get(settings.kv_connector or "", KvTransfers)
        self.transfers: KvTransfers = connector(settings, self.engine, self.die)
        self.store = KvStore(settings, self.engine.block_size)
        self.peer_tier = PeerTier(settings, self.engine) if settings.kv_connector == "offloading_peer" else None
        self.clock = EngineClock(self.engine, settings.time_scale, self._on_step)
        self.metrics = WorkerMetrics(
            settings.model_name,
            self.max_model_len,
            capacity.cache_config(),
            self.started_unix_s,
            self.engine.statistics,
            lambda: self.sleep_level or 0,
            settings.log_stats,
            self.transfers.statistics if self.transfers.enabled else None,
        )
        self.publisher: EventPublisher | None = None
        self._clock_task: asyncio.Task[None] | None = None

    def _engine(self, profile: Profile, num_blocks: int) -> Engine:
        settings = self.settings
        return Engine(
            profile,
            sample=self._sample,
            num_blocks=num_blocks,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            seed=settings.seed,
            jitter=settings.jitter,
            speed=settings.speed,
        )

    def _sample(self, state: EngineRequestState) -> int:
        generation = self._live.get(state.id)
        return self._sampler.next(state, generation.sampling if generation is not None else None)

    async def start(self) -> None:
        """Bind the KV event sockets, if events are on, and start the engine's clock.

        Raises:
            OSError: naming the address that cannot be bound.
        """
        settings = self.settings
        if settings.kv_events:
            publisher = EventPublisher(
                settings.kv_events_topic, settings.kv_events_buffer_steps, settings.kv_events_hwm
            )
            self.event_endpoints = publisher.start(
                settings.host, settings.kv_events_port, settings.kv_events_replay_port
            )
            self.publisher = publisher
        self._clock_task = asyncio.get_running_loop().create_task(self.clock.run())
        self._clock_task.add_done_callback(self._clock_stopped)

    def _clock_stopped(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the simulated engine died", exc_info=error)
            self._fail_all()

    def die(self) -> None:
        """End the engine, as vLLM's ends after an exception. The server goes on and answers 500."""
        if self._clock_task is not None:
            self._clock_task.cancel()
        self._fail_all()

    def _fail_all(self) -> None:
        for generation in list(self._live.values()):
            self.abort(generation)
            generation.inbox.engine_died()

    @property
    def idle(self) -> bool:
        return not self._live

    async def until_idle(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), limit_s)

    def fall_silent(self) -> None:
        """Generate and deliver nothing more. Connections stay as they are."""
        self.clock.freeze()
        self._silent = True

    @property
    def alive(self) -> bool:
        return self._clock_task is not None and not self._clock_task.done()

    async def aclose(self) -> None:
        """Idempotent."""
        self.abort_all()
        if self._closed:
            return
        self._closed = True
        await self.transfers.aclose()
        if self.peer_tier is not None:
            await self.peer_tier.aclose()
        if self._clock_task is not None:
            self._clock_task.cancel()
            await asyncio.gather(self._clock_task, return_exceptions=True)
        if self.publisher is not None:
            self.publisher.close()

    def adapter(self, model: str | None) -> str | None:
        """Return the LoRA adapter that a request names, None for the base model; raises `ApiError` 404."""
        if model is None or model == self.settings.model_name:
            return None
        if model in self.adapters:
            return model
        raise unknown_model(model)

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        body: ChatBody | CompletionBody,
        request_id: str,
        *,
        received: bool = False,
        loaded_tokens: Sequence[int] = (),
    ) -> tuple[Inbox, list[Generation]]:
        """Queue every prompt of one HTTP request, or none; raises `ApiError` 400, 404 or 503.

        `received`: the KV cache of the prompts has come from another worker. `loaded_tokens` of each prompt came from
        host memory, here or there.
        """
        adapter = self.adapter(body.model)
        default = self.settings.default_max_tokens if isinstance(body, ChatBody) else COMPLETION_MAX_TOKENS
        self._admit(len(prompts))
        lengths = [answer_tokens(len(prompt), body, self.max_model_len, default) for prompt in prompts]
        inbox = Inbox()
        generations: list[Generation] = []
        for index, (prompt, max_tokens) in enumerate(zip(prompts, lengths, strict=True)):
            sampling = read_sampling(body, self._eos_id)
            request = EngineRequest(
                id=f"{request_id}-{next(self._numbers)}",
                prompt_ids=prompt,
                max_tokens=max_tokens,
                stop_after=self._stop_after(body, sampling),
                lora_name=adapter,
                cache_salt=body.cache_salt,
                announces_reuse=body.announces_reuse,
                keeps_blocks=self.transfers.keeps(body.kv_transfer_params),
                received=received,
                loaded_tokens=loaded_tokens[index] if loaded_tokens else 0,
            )
            self.transfers.began(request.id, request_id, body.kv_transfer_params)
            try:
                state = self.engine.add(request, time.monotonic())
            except RequestRefused as error:
                for generation in generations:
                    self.abort(generation)
                raise ApiError(str(error), param="prompt") from None
            text = AnswerText(Detokenizer(self._vocabulary, prompt), read_stops(body))
            generation = Generation(state, index, inbox, sampling, text, self._stopped)
            self._live[request.id] = generation
            self._idle.clear()
            generations.append(generation)
        if self.prompts.closed:
            for generation in generations:
                self._give_up(generation)
        self.clock.wake()
        return inbox, generations

    def _stop_after(self, body: ChatBody | CompletionBody, sampling: Sampling) -> int | None:
        if sampling.draws is not None:
            return None  # it draws the end-of-sequence token itself
        return draw_stop(body, self.settings.stop_probability, self._draw_stop)

    def _admit(self, prompts: int) -> None:
        if not self.alive:
            raise ApiError("The engine is dead.", status=HTTPStatus.INTERNAL_SERVER_ERROR)
        if self.sleep_level is not None:
            raise unavailable("The engine is asleep.")
        if self.pause_mode in ("abort", "wait"):
            raise unavailable("The engine is paused.")
        limit = self.settings.max_num_queued_reqs
        if limit is not None and len(self._live) + prompts > limit:
            self.metrics.rejected()
            raise unavailable(f"Too many requests: {len(self._live)} are in flight, the limit is {limit}.")

    def _on_step(self, result: StepResult, now_s: float) -> None:
        if self._silent:
            return
        if result.events:
            below = () if self.peer_tier is None else self.peer_tier.host.copy(result.events)
            if self.publisher is not None:
                self.publisher.publish(result.events, time.time(), below)
        live = self._live
        for request_id, token_id, reason in result.outputs:
            generation = live.get(request_id)
            if generation is None:
                continue
            self.metrics.token(generation, now_s)
            if reason is not None:
                ended = generation.state.request
                self.store.store(ended.prompt_ids, ended.cache_salt, ended.lora_name)
                self._forget(generation, reason)
            generation.inbox.put((generation, token_id, reason))

    def _forget(self, generation: Generation, reason: FinishReason) -> None:
        del self._live[generation.state.request.id]
        if not self._live:
            self._idle.set()
        self.transfers.ended(generation.state.request.id, reason)
        self.metrics.finished(generation, reason, time.monotonic())

    def _stopped(self, generation: Generation) -> None:
        """Take an answer out of the engine that has come to its end-of-sequence token or to a stop string."""
        self.abort(generation, FinishReason.STOP)

    def abort(self, generation: Generation, reason: FinishReason = FinishReason.ABORT) -> None:
        """Remove `generation` from the engine at once. This has no effect if it has ended."""
        request_id = generation.state.request.id
        if request_id in self._live:
            self.engine.abort(request_id)
            self.engine.let_go(request_id)  # its last step may have been computed already
            self._forget(generation, reason)

    def abort_all(self) -> None:
        """End every answer with the reason "abort", as a shutdown or a sleep does."""
        for generation in list(self._live.values()):
            self._give_up(generation)

    def _give_up(self, generation: Generation) -> None:
        self.abort(generation)
        generation.inbox.put((generation, NO_TOKEN, FinishReason.ABORT))

    def stop_reading(self) -> None:
        """Begin a shutdown with a time to end requests. Running ones go on, and `/health` says 200.

        New texts are refused with 500. New prompts of ids are let in, and aborted at once.
        """
        self.prompts.closed = True

    def sleep(self, level: int) -> None:
        """Refuse work until `wake_up`; at level 1 and above the cache is lost."""
        self.abort_all()
        self.sleep_level = level
        if level:
            self.engine.reset_prefix_cache()

    def wake_up(self) -> None:
        self.sleep_level = None

    async def pause(self, mode: PauseMode, clear_cache: bool) -> None:
        """Refuse work until `resume`, and end running work first (abort, wait), or hold all work (keep)."""
        self.pause_mode = mode
        if mode == "keep":
            self.clock.freeze()
            return
        if mode == "abort":
            self.abort_all()
        await self._idle.wait()
        if clear_cache:
            self.engine.reset_prefix_cache()

    def resume(self) -> None:
        self.pause_mode = None
        self.clock.thaw()

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Serve a LoRA adapter from a folder; raises `ApiError` 400 or 404."""
        if name == self.settings.model_name or (name in self.adapters and not in_place):
            raise ApiError(f"The lora adapter '{name}' has already been loaded.")
        if not Path(path).is_dir():
            raise ApiError(f"Loading lora {name} failed: No adapter found for {path}", status=HTTPStatus.NOT_FOUND)
        self.adapters[name] = path

    def unload_adapter(self, name: str) -> None:
        """Stop serving a LoRA adapter; raises `ApiError` 404."""
        if name not in self.adapters:
            raise ApiError(f"The lora adapter '{name}' cannot be found.", status=HTTPStatus.NOT_FOUND)
        del self.adapters[name]

    def statistics(self) -> dict[str, Any]:
        return {
            "engine": self.engine.statistics(),
            "clock": self.clock.statistics(),
            "publisher": self.publisher.statistics() if self.publisher is not None else None,
            "metrics": self.metrics.statistics(),
            "transfers": self.transfers.statistics(),
            "peer_tier": None if self.peer_tier is None else self.peer_tier.statistics(),
            "in_flight": len(self._live),
        }
