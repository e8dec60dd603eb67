"""A small endpoint picker on Envoy's own generated service (xds-protos), for full duplex. Prints its port.

Run in the deploy environment: it shares no message and no path with router/picker.
"""

import itertools
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as service
from google.protobuf.json_format import MessageToDict

KEY = "x-gateway-destination-endpoint"


class Picker(service.ExternalProcessorServicer):
    def __init__(self, endpoints):
        self.endpoints = endpoints
        self.turn = itertools.count()

    def Process(self, messages, context):
        subset, body, decided = None, bytearray(), False
        for message in messages:
            kind = message.WhichOneof("request")
            if kind == "request_headers":
                hint = MessageToDict(message.metadata_context).get("filterMetadata", {}).get("envoy.lb.subset_hint", {})
                subset = hint.get(f"{KEY}-subset")
                if message.request_headers.end_of_stream:
                    yield self.pick(subset)
            elif kind == "request_body" and not decided:
                body += message.request_body.body
                if message.request_body.end_of_stream:
                    decided = True
                    yield from self.answers(subset, bytes(body), True)
            elif kind == "request_trailers":
                yield from self.answers(subset, bytes(body), False)
                yield pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
            elif kind == "response_headers":
                yield pb.ProcessingResponse(response_headers=pb.HeadersResponse())
            elif kind == "response_body":
                part = message.response_body
                mutation = streamed(part.body, part.end_of_stream)
                yield pb.ProcessingResponse(response_body=pb.BodyResponse(response=mutation))
            elif kind == "response_trailers":
                yield pb.ProcessingResponse(response_trailers=pb.TrailersResponse())

    def answers(self, subset, body, ends):
        pick = self.pick(subset)
        yield pick
        parts = [body[at : at + 62_000] for at in range(0, len(body), 62_000)] or [b""]
        for number, part in enumerate(parts, 1):
            mutation = streamed(part, ends and number == len(parts))
            yield pb.ProcessingResponse(request_body=pb.BodyResponse(response=mutation))

    def pick(self, subset):
        wanted = subset.split(",") if isinstance(subset, str) else subset
        eligible = [one for one in self.endpoints if wanted is None or one in wanted]
        if not eligible:
            return pb.ProcessingResponse(immediate_response=pb.ImmediateResponse(status={"code": 503}))
        endpoint = eligible[next(self.turn) % len(eligible)]
        header = base_pb2.HeaderValueOption(header=base_pb2.HeaderValue(key=KEY, raw_value=endpoint.encode()))
        common = pb.CommonResponse(header_mutation=pb.HeaderMutation(set_headers=[header]), clear_route_cache=True)
        answer = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=common))
        answer.dynamic_metadata.update({"envoy.lb": {KEY: endpoint}})
        return answer


def streamed(body, ends):
    part = pb.StreamedBodyResponse(body=body, end_of_stream=ends)
    return pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=part))


server = grpc.server(ThreadPoolExecutor(64), options=[("grpc.max_receive_message_length", -1)])
service.add_ExternalProcessorServicer_to_server(Picker(sys.argv[1:]), server)
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
