"""The source of workers in Kubernetes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from backends.discovery.kubernetes.api import Access, ApiServer, Json, own_namespace
from backends.discovery.kubernetes.objects import Found, pod_workers, pool_of, pool_workers, slice_workers
from backends.discovery.kubernetes.reflector import Reflector
from backends.discovery.registration import Registration
from backends.discovery.report import SourceReport

_SERVICE_LABEL = "kubernetes.io/service-name"
_POOL_GROUP = "inference.networking.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which objects are workers: exactly one of `service`, `pods` (a label selector) and `pool` is set.

    `namespace` None is that of this process's own pod. `port` is the name or the number of the workers' port.
    """

    service: str | None = None
    pods: str | None = None
    pool: str | None = None
    namespace: str | None = None
    port: str | None = None


class KubernetesSource:
    """Follow the workers of one namespace. A pod that is about to end, or is not ready, is no worker."""

    kind = "kubernetes"

    def __init__(self, wanted: Wanted, access: Access) -> None:
        self._wanted = wanted
        self._access = access
        self._workers: dict[int, tuple[Json, tuple[Registration | str, ...]]] = {}
        """What was read out of each object, by its identity: objects are replaced and not changed."""

    async def run(self, report: SourceReport) -> None:
        """Follow until cancelled.

        Raises:
            OSError: a file of the service account cannot be read.
        """
        namespace = self._wanted.namespace or own_namespace()
        api = ApiServer(self._access)
        try:
            await self._follow(api, namespace, report)
        finally:
            await api.aclose()

    async def _follow(self, api: ApiServer, namespace: str, report: SourceReport) -> None:
        wanted = self._wanted
        if wanted.pool is not None:
            await _Pool(api, namespace, wanted.pool, self._answer, report).run()
        elif wanted.service is not None:
            path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            selector = f"{_SERVICE_LABEL}={wanted.service}"
            await self._reflected(api, path, selector, report, lambda item: slice_workers(item, wanted.port))
        else:
            path = f"/api/v1/namespaces/{namespace}/pods"
            await self._reflected(api, path, wanted.pods or "", report, lambda item: pod_workers(item, wanted.port))

    async def _reflected(
        self, api: ApiServer, path: str, selector: str, report: SourceReport, read: Callable[[Json], Found]
    ) -> None:
        def changed() -> None:
            self._answer(report, reflector.objects.values(), read)

        reflector = Reflector(api, path, {"labelSelector": selector}, changed, report.failed)
        await reflector.run()

    def _answer(self, report: SourceReport, items: Iterable[Json], read: Callable[[Json], Found]) -> None:
        """Report the workers of all objects. An object that has not changed is not read again."""
        known, self._workers = self._workers, {}
        workers: dict[str, Registration] = {}
        refused = []
        for item in items:
            found = known.get(id(item))
            self._workers[id(item)] = one = found if found is not None else (item, tuple(read(item)))
            for worker in one[1]:
                if isinstance(worker, str):
                    refused.append(worker)
                else:
                    workers[worker.worker_id] = worker
        report.answer(workers, refused)


class _Pool:
    def __init__(
        self,
        api: ApiServer,
        namespace: str,
        name: str,
        answer: Callable[[SourceReport, Iterable[Json], Callable[[Json], Found]], None],
        report: SourceReport,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._answer = answer
        self._report = report
        self._selected: tuple[dict[str, str], tuple[int, ...]] | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow both until cancelled."""
        path = f"/apis/{_POOL_GROUP}/namespaces/{self._namespace}/inferencepools"
        pools = Reflector(
            self._api,
            path,
            {"fieldSelector": f"metadata.name={self._name}"},
            lambda: self._read(pools),
            self._report.failed,
        )
        following = asyncio.create_task(pools.run())
        pods: asyncio.Task[None] | None = None
        try:
            while True:
                changed = asyncio.create_task(self._changed.wait())
                ends = [task for task in (changed, following, pods) if task is not None]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in ends:
                    if task is not changed and task.done():
                        task.result()
                changed.cancel()
                self._changed.clear()
                await _ended(pods)
                pods = asyncio.create_task(self._pods())
        finally:
            await _ended(following)
            await _ended(pods)

    def _read(self, pools: Reflector) -> None:
        """Take the labels and ports of the pool. A pool without is a failure: the last answer stays."""
        pool = next(iter(pools.objects.values()), None)
        if pool is None:
            self._report.failed(f"there is no inferencepool {self._name} in namespace {self._namespace}")
            return
        try:
            selected = pool_of(pool)
        except ValueError as error:
            self._report.failed(str(error))
            return
        if selected != self._selected:
            self._selected = selected
            self._changed.set()

    async def _pods(self) -> None:
        assert self._selected is not None, "the pool has been read"
        labels, ports = self._selected
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))

        def changed() -> None:
            self._answer(self._report, reflector.objects.values(), lambda item: pool_workers(item, ports))

        reflector = Reflector(self._api, path, {"labelSelector": selector}, changed, self._report.failed)
        await reflector.run()


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
