"""What a process measures its runs with, from the settings: spans for a collector, metrics for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from task.errors import SettingsError
from task.settings import Settings, process_environment
from task.telemetry import SHARED_METRICS
from task.telemetry.operations import Telemetry

if TYPE_CHECKING:
    from task.telemetry.metrics import PrometheusMetrics
    from task.telemetry.otel import OtelSpans


def telemetry_of(settings: Settings, metrics: PrometheusMetrics | None = None) -> Telemetry:
    """Spans where the settings name a collector; `metrics` are for a process that serves them.

    Raises:
        SettingsError: the packages for spans are not installed.
    """
    return Telemetry(metrics, _spans(settings))


def metrics_of(settings: Settings) -> PrometheusMetrics | None:
    """The metrics of a serving process, which all processes share that have the same folder for them.

    Raises:
        SettingsError: there is no such folder.
    """
    if not settings.metrics.enabled:
        return None
    from task.telemetry.metrics import PrometheusMetrics

    shared = process_environment().get(SHARED_METRICS)
    if shared and not Path(shared).is_dir():
        raise SettingsError(f"{SHARED_METRICS}: {shared} is not a folder. Create it, or remove the variable.")
    return PrometheusMetrics(_models(settings), Path(shared) if shared else None)


def _spans(settings: Settings) -> OtelSpans | None:
    base, whole = settings.otel_exporter_otlp_endpoint, settings.otel_exporter_otlp_traces_endpoint
    if base is None and whole is None:
        return None
    try:
        from task.telemetry.otel import SEND_SECONDS, OtelSpans, collector_at
    except ImportError as error:
        raise SettingsError(
            "OTEL_EXPORTER_OTLP_ENDPOINT needs packages that are not installed: pip install "
            "'dial-general-purpose-agent[otel]'."
        ) from error
    limited = (
        not process_environment().keys().isdisjoint(("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"))
    )
    return OtelSpans(collector_at(whole or f"{base}/v1/traces", None if limited else SEND_SECONDS))


def _models(settings: Settings) -> set[str]:
    named = (
        settings.deployment_name, settings.planner_model, settings.coder_model, settings.rag.deployment,
        settings.rag.reranker, *settings.prices,
    )  # fmt: skip
    return {name for name in named if name}
