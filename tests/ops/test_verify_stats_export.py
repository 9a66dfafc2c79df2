"""dspark_ext.metrics: the counters of AcceptanceStats in Prometheus."""

import builtins

import pytest
import torch

from dspark_ext import metrics, verify

prometheus_client = pytest.importorskip("prometheus_client")


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


def samples(registry):
    """name or (name, position) -> value."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                position = sample.labels.get("position")
                found[(sample.name, int(position)) if position else sample.name] = sample.value
    return found


def test_the_names_and_values_of_vllm(registry):
    """BR-063: the anchor row is no draft, and a request without drafts is no draft either."""
    stats = verify.AcceptanceStats(2, 3)
    exporter = metrics.PrometheusExporter(stats, registry=registry)
    stats.update(int32(3, 0), int32(2, 0))
    stats.update(int32(2, 1), int32(0, 1))
    assert exporter.update().steps == 4
    prefix = "vllm:spec_decode_num_"
    assert samples(registry) == {
        f"{prefix}drafts_total": 3,
        f"{prefix}draft_tokens_total": 6,
        f"{prefix}accepted_tokens_total": 3,
        (f"{prefix}accepted_tokens_per_pos_total", 0): 2,
        (f"{prefix}accepted_tokens_per_pos_total", 1): 1,
        (f"{prefix}accepted_tokens_per_pos_total", 2): 0,
        ("dspark_ext:spec_decode_num_draft_tokens_per_pos_total", 0): 3,
        ("dspark_ext:spec_decode_num_draft_tokens_per_pos_total", 1): 2,
        ("dspark_ext:spec_decode_num_draft_tokens_per_pos_total", 2): 1,
    }
    text = prometheus_client.generate_latest(registry).decode()
    assert f"# TYPE {prefix}drafts_total counter" in text


def test_counters_never_fall(registry):
    stats = verify.AcceptanceStats(2, 2)
    exporter = metrics.PrometheusExporter(stats, registry=registry)
    name = "vllm:spec_decode_num_draft_tokens_total"
    stats.update(int32(2, 2), int32(1, 0))
    exporter.update()
    exporter.update()  # nothing new
    assert samples(registry)[name] == 4
    stats.reset(torch.tensor([0]))  # a finished request stays counted
    exporter.update()
    assert samples(registry)[name] == 4
    stats.reset()
    stats.update(int32(1, 0), int32(1, 0))
    exporter.update()
    assert samples(registry)[name] == 5
    assert samples(registry)["vllm:spec_decode_num_drafts_total"] == 3


def test_labels_tell_engines_apart(registry):
    engines = [verify.AcceptanceStats(1, 1) for _ in range(2)]
    exporters = [
        metrics.PrometheusExporter(
            stats, labels={"model_name": "m", "engine": str(i)}, registry=registry
        )
        for i, stats in enumerate(engines)
    ]
    engines[1].update(int32(1), int32(1))
    for exporter in exporters:
        exporter.update()
    for engine, value in (("0", 0), ("1", 1)):
        labels = {"model_name": "m", "engine": engine}
        assert registry.get_sample_value("vllm:spec_decode_num_drafts_total", labels) == value
        labels["position"] = "0"
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        assert registry.get_sample_value(name, labels) == value
    with pytest.raises(ValueError, match="dspark_ext.PrometheusExporter: labels"):
        metrics.PrometheusExporter(engines[0], registry=registry)


def test_counters_of_somebody_else(registry):
    prometheus_client.Counter("vllm:spec_decode_num_drafts", "theirs", registry=registry)
    with pytest.raises(ValueError, match="dspark_ext.PrometheusExporter: registry"):
        metrics.PrometheusExporter(verify.AcceptanceStats(1, 1), registry=registry)


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "prometheus_client":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'dspark_ext\[prometheus\]'"):
        metrics.PrometheusExporter(verify.AcceptanceStats(1, 1))
