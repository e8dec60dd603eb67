"""What a picker answered to one phase, read as Envoy reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.struct_pb2 import Struct, Value

from router.picker.conformance.outcome import CaseFailed, expect
from router.picker.protocol.ext_proc_pb2 import (
    CommonResponse,
    HeaderMutation,
    HeaderValueOption,
    ImmediateResponse,
    ProcessingResponse,
    StreamedBodyResponse,
)
from router.picker.protocol.names import DESTINATION, LB_NAMESPACE


@dataclass(frozen=True, slots=True)
class PickerAnswer:
    messages: tuple[ProcessingResponse, ...]
    ended: bool = False
    """The picker ended the stream, with status OK."""

    @property
    def kinds(self) -> list[str]:
        return [str(message.WhichOneof("response")) for message in self.messages]

    @property
    def refusal(self) -> ImmediateResponse | None:
        refusals = (one.immediate_response for one in self.messages if one.HasField("immediate_response"))
        return next(refusals, None)

    def picked(self) -> str:
        """Return the value of the destination header.

        Raises:
            CaseFailed: there is none.
        """
        value = self.header(DESTINATION)
        if not value:
            raise CaseFailed(f"no header {DESTINATION}: {self.described()}")
        return value

    def endpoints(self) -> list[str]:
        """Return the destination's endpoints in their order."""
        return [endpoint.strip() for endpoint in self.picked().split(",")]

    def refused(self, *statuses: int) -> ImmediateResponse:
        """Return the immediate response.

        Raises:
            CaseFailed: there is none, or it has another status.
        """
        refusal = self.refusal
        expected = " or ".join(map(str, statuses))
        if refusal is None or refusal.status.code not in statuses:
            raise CaseFailed(f"not an ImmediateResponse with {expected}: {self.described()}")
        return refusal

    def described(self) -> str:
        """Say what came, for the report."""
        if self.refusal is not None:
            text = self.refusal.body[:80].decode(errors="replace")
            return f"an ImmediateResponse with {self.refusal.status.code}" + (f" ({text})" if text else "")
        end = ["the end of the stream"] if self.ended else []
        pick = self.header(DESTINATION)
        names = [f"{kind} (pick {pick})" if pick and kind == "request_headers" else kind for kind in self.kinds]
        return ", ".join(names + end) or "nothing"

    def common(self) -> list[CommonResponse]:
        """Return what the answers to headers and body have in common."""
        kinds = ("request_headers", "response_headers", "request_body", "response_body")
        return [
            getattr(message, kind).response
            for message, kind in zip(self.messages, self.kinds, strict=True)
            if kind in kinds
        ]

    def option(self, name: str) -> HeaderValueOption | None:
        """Return the last mutation that sets a header, or None."""
        options = [one for common in self.common() for one in set_in(common.header_mutation, name)]
        return options[-1] if options else None

    def header(self, name: str) -> str | None:
        """Return the value that a header is set to, or None."""
        option = self.option(name)
        return None if option is None else text_of(option)

    def removed(self, name: str) -> bool:
        return any(name == one.lower() for common in self.common() for one in common.header_mutation.remove_headers)

    def metadata(self, key: str) -> Value | None:
        """Return a value of the dynamic metadata in `envoy.lb`, or None."""
        for message in self.messages:
            namespaces: Struct = message.dynamic_metadata
            if LB_NAMESPACE in namespaces.fields and key in namespaces.fields[LB_NAMESPACE].struct_value.fields:
                return namespaces.fields[LB_NAMESPACE].struct_value.fields[key]
        return None

    def chunks(self, kind: str = "request_body") -> list[StreamedBodyResponse]:
        """Return the streamed parts of the request's body, or with ``response_body`` of the response's."""
        bodies = [getattr(one, kind).response for one in self.messages if one.WhichOneof("response") == kind]
        return [body.body_mutation.streamed_response for body in bodies if is_streamed(body)]

    def body(self, kind: str = "request_body") -> bytes:
        return b"".join(chunk.body for chunk in self.chunks(kind))


def is_streamed(answer: CommonResponse) -> bool:
    return answer.body_mutation.HasField("streamed_response")


def set_in(mutation: HeaderMutation, name: str) -> list[HeaderValueOption]:
    return [option for option in mutation.set_headers if option.header.key.lower() == name]


def text_of(option: HeaderValueOption) -> str:
    return (option.header.raw_value or option.header.value.encode()).decode(errors="replace")


def overwrites(option: HeaderValueOption) -> bool:
    """Whether a header of the client's is replaced.

    Envoy appends on request only: without `append` and with the default of `append_action` it replaces.
    """
    actions = (HeaderValueOption.APPEND_IF_EXISTS_OR_ADD, HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    return not option.append.value and option.append_action in actions


def expect_within(endpoints: Sequence[str], allowed: Sequence[str]) -> None:
    """Fail unless all endpoints are among those allowed, each once."""
    outside = [endpoint for endpoint in endpoints if endpoint not in allowed]
    expect(not outside, f"{', '.join(outside)} is not among {', '.join(allowed)}")
    expect(len(set(endpoints)) == len(endpoints), f"an endpoint comes twice in {', '.join(endpoints)}")


def expect_body(received: bytes, sent: bytes) -> None:
    """Fail where two bodies differ, and say where."""
    if received == sent:
        return
    at = next(
        (n for n, (a, b) in enumerate(zip(received, sent, strict=False)) if a != b), min(len(received), len(sent))
    )
    raise CaseFailed(f"{len(sent):,} bytes were sent and {len(received):,} came back; they differ at byte {at:,}")
