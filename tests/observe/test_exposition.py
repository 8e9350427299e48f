"""Several workers' metrics as one text that Prometheus' own parser reads."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.config.versions import Version
from gateway.observe.exposition import join_workers
from gateway.observe.metrics import Metrics


def rendered(generation: int) -> bytes:
    metrics = Metrics(lambda: {"planning": generation})
    metrics.configure(Version(generation, "d" * 64), models=["m"], routes=["a b{"], tools=[], backends=[])
    metrics._decisions.labels('a b{"', "rule").inc(generation)
    return metrics.render()


def test_every_series_is_there_once_a_worker_and_every_metric_once() -> None:
    texts = {2: rendered(2), 1: rendered(1)}
    families = list(text_string_to_metric_families(join_workers(texts).decode()))
    assert len({family.name for family in families}) == len(families)
    alone = {number: list(text_string_to_metric_families(text.decode())) for number, text in texts.items()}
    assert [family.name for family in families] == [family.name for family in alone[1]]
    for number, own in alone.items():
        expected = {
            (sample.name, tuple(sorted((sample.labels | {"worker": str(number)}).items())), sample.value)
            for family in own
            for sample in family.samples
        }
        found = {
            (sample.name, tuple(sorted(sample.labels.items())), sample.value)
            for family in families
            for sample in family.samples
            if sample.labels["worker"] == str(number)
        }
        assert found == expected


def test_a_metric_that_only_one_worker_has_keeps_its_heading() -> None:
    text = "# HELP more_total More.\n# TYPE more_total counter\nmore_total 3.0\n"
    joined = join_workers({1: b"", 2: text.encode()}).decode()
    assert joined == text.replace("more_total 3.0", 'more_total{worker="2"} 3.0')
