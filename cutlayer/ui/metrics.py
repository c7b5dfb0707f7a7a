"""The health and the metrics of a run over the network, for programs, on an address apart from the clients'.

/healthz    200 and a short status while it runs, 503 when clients can no longer connect
/metrics    counters and gauges, as Prometheus reads them
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cutlayer.core import heap
from cutlayer.errors import ContractError
from cutlayer.experiment.experiment import Experiment
from cutlayer.network.server.service import Service
from cutlayer.network.transport import free

SECONDS = 10.0  # for a request
CONNECTIONS = 32  # at a time; more are closed at once, so that they take no descriptors from the run
log = logging.getLogger(__name__)


@contextmanager
def shown(experiment: Experiment, service: Service, place: str) -> Iterator[str]:
    """Answer requests while the context lasts; yield the address of /metrics."""
    free("metrics", place)
    host, _, port = place.rpartition(":")
    registry = CollectorRegistry()
    registry.register(Figures(experiment, service))

    class Handler(BaseHTTPRequestHandler):
        timeout = SECONDS

        def do_GET(self) -> None:
            if self.path == "/healthz":
                alive, words = health(experiment, service)
                self._answer(200 if alive else 503, "application/json", json.dumps(words).encode())
            elif self.path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(registry))
            else:
                self._answer(404, "text/plain", b"/healthz or /metrics\n")

        def _answer(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing: a request is not worth a line."""

    try:
        server = Bounded((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise ContractError(f"metrics = {place!r}: {error}; expected HOST:PORT that is free") from error
    thread = threading.Thread(target=server.serve_forever, name="cutlayer-metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


class Bounded(ThreadingHTTPServer):
    """Answers a few requests at a time. A reader that hangs up is no error."""

    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self._room = threading.Semaphore(CONNECTIONS)
        super().__init__(*given)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return self._room.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):
            log.error("metrics: %s: %s", type(error).__name__, error)


def health(experiment: Experiment, service: Service) -> tuple[bool, dict[str, object]]:
    """Return whether clients can connect, and the status of the run."""
    alive = service.hub.alive
    return alive, {
        "status": "ok" if alive else "nobody can come in: its network thread has ended",
        "doing": service.cohort.status,
        "rounds": len(experiment.history),
        "of": experiment.config.rounds,
        "clients": len(service.roster.connected),
    }


class Figures(Collector):
    """The metrics of a run, collected at each request."""

    def __init__(self, experiment: Experiment, service: Service) -> None:
        self.experiment, self.service = experiment, service

    def collect(self) -> Iterator[Metric]:
        history, hub, roster = list(self.experiment.history), self.service.hub, self.service.roster
        sessions = list(hub.sessions.values())
        yield CounterMetricFamily("cutlayer_rounds", "Rounds that count.", value=len(history))
        lost = sum(record.lost for record in history)
        yield CounterMetricFamily("cutlayer_lost_clients", "Clients lost on the way.", value=lost)
        yield GaugeMetricFamily("cutlayer_clients_known", "Clients that ever came.", value=len(roster.entries))
        yield GaugeMetricFamily("cutlayer_clients_connected", "Clients that are there.", value=len(roster.connected))
        if history:
            last = history[-1]
            yield GaugeMetricFamily("cutlayer_round_seconds", "Time of the last round.", value=last.seconds)
            steps = last.seconds / max(last.steps, 1)
            yield GaugeMetricFamily("cutlayer_step_seconds", "Of the last round, for each step.", value=steps)
            if last.accuracy is not None:
                yield GaugeMetricFamily("cutlayer_accuracy", "Of the last round.", value=last.accuracy)
        answers = GaugeMetricFamily("cutlayer_answer_seconds", "From a question to its answer.", labels=["client"])
        for entry in list(roster.entries):
            answers.add_metric([entry.name], entry.seconds)
        yield answers
        counts = dict(hub.counts)
        yield CounterMetricFamily("cutlayer_streams", "Streams that were begun.", value=counts.pop("streams", 0))
        refusals = CounterMetricFamily("cutlayer_refusals", "Who was refused, by kind.", labels=["kind"])
        for kind, many in sorted(counts.items()):
            refusals.add_metric([kind.removeprefix("refused: ")], many)
        yield refusals
        up, down = hub.up + sum(s.up for s in sessions), hub.down + sum(s.down for s in sessions)
        traffic = CounterMetricFamily("cutlayer_bytes", "Sent and received.", labels=["way"])
        traffic.add_metric(["up"], up)
        traffic.add_metric(["down"], down)
        yield traffic
        yield GaugeMetricFamily("cutlayer_peak_memory_bytes", "The most this process has had.", value=heap.peak() or 0)
