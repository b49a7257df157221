"""Metrics for Prometheus: a port of the driver's that answers scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from millrace.model.errors import PipelineError
from millrace.spark.metrics.table import BOUNDS, COUNTER, HISTOGRAMS, NUMBERS, Metric, below
from millrace.spark.status import Status

#: A scraper that asks and never reads is hung up on after so long.
_PATIENCE_S: Final = 10.0
#: So many are answered at once; more are hung up on, so that none can take the driver's memory.
_AT_ONCE: Final = 8


class Scrapes:
    """Answers scrapes at a port.

    The port is taken when it is made, so that one in use is found before a run touches anything.

    Args:
        where: A port of the loopback interface, or ``host:port``; 0 for any that is free.

    Attributes:
        where: As it was given.
        port: The one that was taken.

    Raises:
        PipelineError: The port is in use, or ``prometheus-client`` is not installed.
    """

    def __init__(self, where: int | str) -> None:
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError as missing:
            raise PipelineError(
                f"start(metrics={where!r}) needs prometheus-client, which is not installed. "
                "pip install 'millrace-spark[metrics]'"
            ) from missing
        self.where = where
        host, port = _address(where)
        registry = CollectorRegistry(auto_describe=False)
        self._status: Callable[[], Status] | None = None
        registry.register(self)
        try:
            self._server = make_server(host, port, make_wsgi_app(registry), _Server, _Handler)
        except OSError as refused:
            raise PipelineError(
                f"start(metrics={where!r}): nothing can be served at {host}:{port}: "
                f"{refused.strerror or refused}. Does another run, or program, have the port? Give "
                "another one, or 0 for any that is free; run.metrics_port says which."
            ) from refused
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="millrace-metrics", daemon=True
        )

    def serve(self, status: Callable[[], Status]) -> None:
        """Answer from now on, for a run, or for the one that goes on in its place.

        Args:
            status: Returns where the run stands; any thread may call it.
        """
        self._status = status
        if not self._thread.is_alive():
            self._thread.start()

    def collect(self) -> Iterator[Any]:
        """Yield what a scrape gets: prometheus-client calls it for each."""
        if self._status is None:
            return
        status = self._status()
        for metric in NUMBERS:
            if metric.draw(status):
                yield _numbers(metric, status)
        for metric in HISTOGRAMS:
            if metric.draw(status):
                yield _histogram(metric, status)

    def close(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


def _numbers(metric: Metric, status: Status) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    labels = ["pipeline", metric.label] if metric.label else ["pipeline"]
    family = kind(f"millrace_{metric.name}", metric.help, labels=labels)
    for label, value in metric.draw(status).items():
        family.add_metric([status.pipeline, label] if metric.label else [status.pipeline], value)
    return family


def _histogram(metric: Metric, status: Status) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    labels = ["pipeline", metric.label]
    family = HistogramMetricFamily(f"millrace_{metric.name}", metric.help, labels=labels)
    bounds = [*map(str, BOUNDS), "+Inf"]
    for label, times in metric.draw(status).items():
        buckets = list(zip(bounds, below(times), strict=True))
        family.add_metric([status.pipeline, label], buckets, sum_value=times.seconds)
    return family


def _address(where: int | str) -> tuple[str, int]:
    host, _, port = str(where).rpartition(":")
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise PipelineError(
            f"start(metrics={where!r}): expected a port, such as 9464, which is served to this "
            'host alone, or "0.0.0.0:9464".'
        )
    return host or "127.0.0.1", int(port)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a scraper that went away."""


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing of each scrape."""
