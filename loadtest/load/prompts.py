"""Requests from calls: the body of each, with the words of its pieces and the real answers of earlier turns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.load.order import Order
from loadtest.load.seen import STREAMED
from loadtest.workload.plan import Call
from loadtest.workload.text import Piece, Text
from loadtest.workload.wording import Wording


class Prompts:
    """Writes bodies. `texts` has the pieces that are real text; the wording writes the others."""

    def __init__(self, order: Order, wording: Wording, texts: Mapping[int, str]) -> None:
        self._chat = order.chat
        self._wording = wording
        self._texts = texts
        self._fixed: dict[str, Any] = {"model": order.model, **STREAMED}
        if order.ignore_eos:
            self._fixed["ignore_eos"] = True
        self._fixed |= order.extra_body
        self._limit = "max_completion_tokens" if order.chat else "max_tokens"

    def body(self, call: Call, answers: Mapping[Piece, str]) -> dict[str, Any]:
        """Return the body of a call. `answers` are those of its session so far, by the piece that stands for each."""
        asked: dict[str, Any] = {self._limit: call.max_tokens or call.answer[1]}
        if self._chat:
            asked["messages"] = self._messages(call.prompt, answers)
        else:
            asked["prompt"] = "".join([self._text(piece, answers) for piece in call.prompt.pieces])
        return asked | self._fixed

    def _messages(self, prompt: Text, answers: Mapping[Piece, str]) -> list[dict[str, str]]:
        """Return the messages: an earlier answer is the assistant's, and what lies between is the user's."""
        messages: list[dict[str, str]] = []
        said = {id_ for id_, _ in answers}
        for piece in prompt.pieces:
            role = "assistant" if piece[0] in said else "user"
            text = self._text(piece, answers)
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += text
            else:
                messages.append({"role": role, "content": text})
        return messages

    def _text(self, piece: Piece, answers: Mapping[Piece, str]) -> str:
        if piece in answers:
            return answers[piece]
        if piece[0] in self._texts:
            return self._texts[piece[0]]
        for (id_, _), answer in answers.items():
            if id_ == piece[0]:
                return self._wording.cut(answer, piece[1])  # a later turn may keep only the start of an answer
        return self._wording.piece(piece)
