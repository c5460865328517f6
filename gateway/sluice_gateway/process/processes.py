"""Several worker processes on one port: started, supervised and stopped together."""

import multiprocessing
import signal
import socket
import threading
from contextlib import ExitStack, closing
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Final

import structlog

from sluice_gateway.process.worker import WorkerPlan, configure_logs, run_worker, worker_main
from sluice_gateway.settings import GatewaySettings, check_settings
from sluice_web.addresses import parse_listen
from sluice_web.listening import bind_setting
from sluice_web.process_limits import raise_open_files_limit

CHECK_INTERVAL_S: Final = 0.5
END_MARGIN_S: Final = 10.0

log = structlog.get_logger()


def run_gateway(settings: GatewaySettings, store_url: str) -> int:
    """Serve until a signal; return the exit code, 0 if every upload got a response."""
    check_settings(settings)
    raise_open_files_limit()
    with ExitStack() as stack:
        # Every address is bound before a worker starts, so that one that is taken is one line.
        addresses = (*_further_addresses(settings), ("listen", settings.listen))
        for name, listen in addresses:
            # Linux would divide the connections between this gateway and another one that listens.
            bind_setting(name, listen, is_shared=False).close()
        *_, reserved = [
            stack.enter_context(closing(bind_setting(name, listen, is_shared=True)))
            for name, listen in addresses
        ]
        plan = WorkerPlan(
            settings=settings,
            store_url=store_url,
            collector_id=settings.collector_id or socket.gethostname(),
            host=parse_listen(settings.listen)[0],
            port=reserved.getsockname()[1],
        )
        return run_worker(plan) if settings.workers == 1 else _run_workers(plan)


def _further_addresses(settings: GatewaySettings) -> tuple[tuple[str, str], ...]:
    """Return the addresses of doors that do not speak HTTP, by their settings."""
    named = (
        ("otlp_grpc_listen", settings.otlp_grpc_listen),
        ("forward_listen", settings.forward_listen),
    )
    # With port 0 each worker selects a free one.
    return tuple(one for one in named if one[1] and parse_listen(one[1])[1])


def _run_workers(plan: WorkerPlan) -> int:
    configure_logs(worker=-1, skip_probe=plan.settings.skip_probe)
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    workers = [_start(replace(plan, index=index)) for index in range(plan.settings.workers)]
    code = _supervise(plan, workers, stopping)
    return _stop(plan, workers) or code


def _start(plan: WorkerPlan) -> SpawnProcess:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=worker_main, args=(plan,), name=f"worker-{plan.index}")
    process.start()
    return process


def _supervise(plan: WorkerPlan, workers: list[SpawnProcess], stopping: threading.Event) -> int:
    """Replace workers that were killed; return when one exits with a code."""
    while not stopping.is_set():
        wait([worker.sentinel for worker in workers], timeout=CHECK_INTERVAL_S)
        for index, worker in enumerate(workers):
            code = worker.exitcode
            if code is None or stopping.is_set():
                continue
            if code >= 0:
                return code
            log.error("worker_killed", index=index, signal=-code, action="start another worker")
            workers[index] = _start(replace(plan, index=index))
    return 0


def _stop(plan: WorkerPlan, workers: list[SpawnProcess]) -> int:
    """Drain all workers within a bound; return the highest exit code."""
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(plan.settings.drain_time_s_max + END_MARGIN_S)
        if worker.exitcode is None:
            worker.kill()
            worker.join()
    return max(_code_of(worker) for worker in workers)


def _code_of(worker: SpawnProcess) -> int:
    """Return the exit code of a worker; one that SIGTERM ended was not serving yet."""
    code = worker.exitcode or 0
    return 0 if code == -signal.SIGTERM else abs(code)
