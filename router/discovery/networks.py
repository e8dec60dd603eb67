"""The networks from which workers may register. Prompts go to every registered address, so it must be one's own."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from backends.discovery.registration import Registration
from backends.worker import parse_endpoint

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


class AddressNotAllowedError(Exception):
    """A worker has an address outside the networks; the message names it."""


def networks_of(texts: tuple[str, ...]) -> Networks:
    """Return networks; an address is a network of one.

    Raises:
        ValueError: a text is none.
    """
    return tuple(ipaddress.ip_network(text) for text in texts)


def check_addresses(worker: Registration, networks: Networks) -> None:
    """Refuse a worker with an address outside `networks`. If they are empty, every address is allowed.

    A host name is refused: its address may change after the check.

    Raises:
        AddressNotAllowedError: the worker or its KV events are elsewhere.
        ValueError: its URL is not valid.
    """
    for host in _hosts(worker) if networks else ():
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            raise AddressNotAllowedError(
                f"{host[:200]!r} is no IP address, as discovery.registration_networks needs"
            ) from None
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if not any(address in network for network in networks):
            raise AddressNotAllowedError(f"{address} is in no network of discovery.registration_networks")


def _hosts(worker: Registration) -> Iterator[str]:
    yield _host(parse_endpoint(worker.url).authority)
    if worker.kv_events is not None:
        for endpoint in (worker.kv_events.endpoint, worker.kv_events.replay_endpoint):
            if endpoint is not None:
                yield _host(endpoint.removeprefix("tcp://"))


def _host(place: str) -> str:
    return place.rpartition(":")[0].strip("[]")
