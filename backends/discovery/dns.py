"""Workers in DNS: the addresses of a name with one port, or the targets of SRV records. Times to live are obeyed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from random import uniform

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.rdatatype
import dns.resolver
from dns.rdtypes.IN.SRV import SRV

from backends.discovery.fields import described, parse_server
from backends.discovery.registration import Registration
from backends.discovery.report import SourceReport

LIFETIME_S = 5.0
"""Longest time of one question, with all tries."""
SHORTEST_S = 1.0
"""Shortest time between two questions, also for records whose time to live is 0 and for empty answers."""
_LONGEST_PAUSE_S = 30.0
_MOST_TARGETS = 1_000
_KINDS = (dns.rdatatype.A, dns.rdatatype.AAAA)
_AT_ONCE = 20


class DnsSource:
    """Ask for `name` whenever its records have expired: for its addresses, or without `port` for its SRV records.

    `nameservers` are addresses, with a port if it is not 53; empty means those of the system. A name that does not
    exist is a failure, so that a slip in a zone does not empty the fleet. A name without records is an empty answer.
    """

    kind = "dns"

    def __init__(
        self, name: str, port: int | None = None, scheme: str = "http", nameservers: Sequence[str] = ()
    ) -> None:
        self._name = name
        self._port = port
        self._scheme = scheme
        self._nameservers = nameservers
        self._resolver: dns.asyncresolver.Resolver | None = None
        self._kinds: set[dns.rdatatype.RdataType] = set()
        """The kinds of addresses that there have been."""

    async def run(self, report: SourceReport) -> None:
        pause_s = SHORTEST_S
        while True:
            try:
                workers, ttl_s = await self._ask()
            except (dns.exception.DNSException, OSError, ValueError) as error:
                report.failed(f"{self._name}: {error or type(error).__name__}")
                await asyncio.sleep(pause_s * uniform(0.5, 1.0))
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                continue
            pause_s = SHORTEST_S
            report.answer(workers)
            await asyncio.sleep(max(SHORTEST_S, ttl_s))

    async def _ask(self) -> tuple[dict[str, Registration], float]:
        """Return the workers now, by id, and the shortest time to live in seconds.

        Raises:
            DNSException, OSError: a server does not answer, or the name does not exist.
            ValueError: the system's settings name no server, or there are too many records.
        """
        if self._resolver is None:
            self._resolver = _resolver(self._nameservers)
        if self._port is None:
            places, ttl_s = await self._targets(self._resolver)
        else:
            addresses, ttl_s = await self._addresses(self._resolver, self._name)
            places = [(address, self._port) for address in addresses]
        workers = [described(address, port, {"scheme": self._scheme}) for address, port in places]
        return {worker.worker_id: worker for worker in workers}, ttl_s

    async def _targets(self, resolver: dns.asyncresolver.Resolver) -> tuple[list[tuple[str, int]], float]:
        """Return the places of the SRV records with the lowest priority number."""
        answer = await resolver.resolve(self._name, dns.rdatatype.SRV, raise_on_no_answer=False)
        records = [record for record in answer.rrset or () if isinstance(record, SRV)]
        first = min((record.priority for record in records), default=0)
        chosen = [record for record in records if record.priority == first]
        if len(chosen) > _MOST_TARGETS:
            raise ValueError(f"{len(chosen)} SRV records; at most {_MOST_TARGETS} are read")
        room = asyncio.Semaphore(_AT_ONCE)

        async def resolved(record: SRV) -> tuple[list[str], float]:
            async with room:
                return await self._addresses(resolver, record.target.to_text())

        found = await asyncio.gather(*map(resolved, chosen))
        pairs = zip(chosen, found, strict=True)
        places = [(address, record.port) for record, (addresses, _) in pairs for address in addresses]
        return places, min([_ttl_s([answer]), *(ttl_s for _, ttl_s in found)])

    async def _addresses(self, resolver: dns.asyncresolver.Resolver, name: str) -> tuple[list[str], float]:
        """Return the IPv4 and IPv6 addresses of a name, and the shorter of their times to live.

        Some servers refuse to answer for AAAA what they know as A. A refusal counts as no records if the other kind has
        some, and if this kind never had any: else its workers would leave.
        """
        asked = (resolver.resolve(name, kind, raise_on_no_answer=False) for kind in _KINDS)
        answers = dict(zip(_KINDS, await asyncio.gather(*asked, return_exceptions=True), strict=True))
        found = {
            kind: one for kind, one in answers.items() if not isinstance(one, BaseException) and one.rrset is not None
        }
        self._kinds |= found.keys()
        for kind, one in answers.items():
            if isinstance(one, BaseException) and not (
                found and kind not in self._kinds and isinstance(one, dns.resolver.NoNameservers)
            ):
                raise one
        addresses = [record.to_text() for answer in found.values() for record in answer.rrset or ()]
        return addresses, _ttl_s(found.values())


def _ttl_s(answers: Iterable[dns.resolver.Answer]) -> float:
    return min((float(answer.rrset.ttl) for answer in answers if answer.rrset is not None), default=SHORTEST_S)


def _resolver(nameservers: Sequence[str]) -> dns.asyncresolver.Resolver:
    try:
        resolver = dns.asyncresolver.Resolver(configure=not nameservers)
    except dns.resolver.NoResolverConfiguration as error:
        raise ValueError(f"the system names no DNS server ({error}); write nameservers") from None
    resolver.lifetime = LIFETIME_S
    if nameservers:
        resolver.nameservers = [dns.nameserver.Do53Nameserver(*parse_server(server)) for server in nameservers]
    return resolver
