"""What /metrics shows: requests, tokens and times, and the engine's acceptance counters."""

from __future__ import annotations

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ..metrics import PrometheusExporter

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)


class ServerMetrics:
    """Counters in a registry of their own. `export_acceptance` is for the engine's thread, the rest
    for the event loop's.

    acceptance  the engine's `AcceptanceStats`
    in_flight   () -> number of requests running and queued
    """

    def __init__(self, model: str, acceptance, in_flight) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"dspark_ext:{name}", text, labels, registry=self.registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"dspark_ext:{name}", text, buckets=_SECONDS, registry=self.registry)

        self.answers = counter("http_answers", "HTTP answers.", "path", "status")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of accepted prompts.")
        self.tokens = counter("generated_tokens", "Tokens sent or ready to be sent.")
        self.ended = counter("requests", "Requests that ended, by how.", "reason")
        self.first_token = seconds("first_token_seconds", "Submission to first token.")
        self.duration = seconds("request_seconds", "Submission to last token.")
        gauge = Gauge("dspark_ext:in_flight", "Running and queued.", registry=self.registry)
        gauge.set_function(in_flight)
        self._exporter = PrometheusExporter(
            acceptance, labels={"model_name": model}, registry=self.registry
        )

    def export_acceptance(self) -> None:
        self._exporter.update()

    def render(self) -> bytes:
        return prometheus_client.generate_latest(self.registry)
