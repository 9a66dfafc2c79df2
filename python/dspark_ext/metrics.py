"""Acceptance counters for Prometheus, under the names that vLLM gives them."""

import weakref
from collections.abc import Mapping

from .acceptance_stats import AcceptanceReport, AcceptanceStats

__all__ = ["PrometheusExporter"]

# name, what it counts, whether by position; prometheus_client appends _total
_COUNTERS = (
    ("vllm:spec_decode_num_drafts", "Verification passes of a request with drafts.", False),
    ("vllm:spec_decode_num_draft_tokens", "Drafts verified.", False),
    ("vllm:spec_decode_num_accepted_tokens", "Drafts accepted.", False),
    ("vllm:spec_decode_num_accepted_tokens_per_pos", "Drafts accepted, by position.", True),
    ("dspark_ext:spec_decode_num_draft_tokens_per_pos", "Drafts verified, by position.", True),
)
_registered = weakref.WeakKeyDictionary()


class PrometheusExporter:
    """Counters in a prometheus_client registry, kept up with an `AcceptanceStats`.

    Counters (with label `position`, from 0, where they end in per_pos):

        vllm:spec_decode_num_drafts_total
        vllm:spec_decode_num_draft_tokens_total
        vllm:spec_decode_num_accepted_tokens_total
        vllm:spec_decode_num_accepted_tokens_per_pos_total
        dspark_ext:spec_decode_num_draft_tokens_per_pos_total

    A draft token is one that was verified: with adaptive lengths fewer than were drafted, and the
    anchor row is none. A pass without drafts counts as no draft, as in vLLM.

    Args:
        stats: what to export.
        labels: fixed labels and their values, vLLM's `model_name` and `engine` for instance.
        registry: default prometheus_client.REGISTRY. Exporters of one registry share the counters,
            so they need the same label names and should differ in a value.

    Raises ImportError where prometheus_client is missing, ValueError where the registry holds
    counters of these names from elsewhere, or with other labels.
    """

    def __init__(
        self, stats: AcceptanceStats, *, labels: Mapping[str, str] | None = None, registry=None
    ):
        try:
            import prometheus_client
        except ImportError as error:
            raise ImportError(
                "dspark_ext.PrometheusExporter: needs prometheus-client: "
                "pip install 'dspark_ext[prometheus]'"
            ) from error
        registry = prometheus_client.REGISTRY if registry is None else registry
        labels = {name: str(value) for name, value in (labels or {}).items()}
        counters = _counters(prometheus_client, registry, tuple(labels))
        self.stats = stats
        self._children = []
        for counter, (_, _, by_position) in zip(counters, _COUNTERS):
            if by_position:
                for position in range(stats.num_drafts):
                    self._children.append(counter.labels(**labels, position=str(position)))
            else:
                self._children.append(counter.labels(**labels) if labels else counter)
        self._exported = [0] * len(self._children)

    def update(self) -> AcceptanceReport:
        """Reads the counters (which synchronises) and adds what is new. Call it from the serving
        loop, every few seconds, not from the thread that answers scrapes.

        After `stats.reset()` the exported counters go on from where they were.
        """
        report = self.stats.read()
        values = [
            report.passes_with_drafts,
            report.drafted,
            report.accepted,
            *report.accepted_by_position.tolist(),
            *report.verified_by_position.tolist(),
        ]
        restarted = any(value < before for value, before in zip(values, self._exported))
        for child, value, before in zip(self._children, values, self._exported):
            child.inc(value if restarted else value - before)
        self._exported = values
        return report


def _counters(prometheus_client, registry, labels: tuple[str, ...]) -> list:
    found = _registered.get(registry)
    if found is None:
        try:
            counters = [
                prometheus_client.Counter(
                    name, text, (*labels, "position") if by_position else labels, registry=registry
                )
                for name, text, by_position in _COUNTERS
            ]
        except ValueError as error:
            raise ValueError(
                "dspark_ext.PrometheusExporter: registry: the counters are there already, from "
                f"elsewhere ({error}); give another registry"
            ) from error
        found = _registered[registry] = (labels, counters)
    if found[0] != labels:
        raise ValueError(
            f"dspark_ext.PrometheusExporter: labels: expected the names {list(found[0])} of the "
            f"exporter before in this registry, got {list(labels)}"
        )
    return found[1]
