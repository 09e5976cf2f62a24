"""docs/metrics.md, made of the declarations: ``python -m gpupool.monitoring.metrics_page``."""

from gpupool.monitoring.metric_names import DECLARED, bounds_of

HEAD = """# Metrics

Every server answers `https://SERVER:7470/metrics` in Prometheus's text form, on the port of
everything else. What a server does not know is no series: it is never 0, and never NaN.

## To scrape a pool

<!-- tested -->
```sh
gpupool token create --viewer --user prometheus > /etc/prometheus/gpupool.token
cp /var/lib/gpupool/ca.pem /etc/prometheus/gpupool-ca.pem    # on a server; it is the same on all
```

[packaging/prometheus/scrape.yml](../packaging/prometheus/scrape.yml) has the rest: one URL, `/sd`
of one server, finds all servers, also when they come and go. A viewer's token looks at the pool
and gets no lease; those of users and operators are taken as well. `gpupool token revoke` ends a
scraper's access within 2 s. Options of `gpupool join`:

| option | effect |
| --- | --- |
| `--metrics-open CIDR` | who connects from there needs no token; repeatable |
| `--metrics-users N` | the label `user` for leases: the N users with the most GPU time since the \
observer began, the rest `_other`. Who is a GPU minute ahead takes the rows of another, from 0 on |
| `--sd-labels NAMES` | labels of servers that `/sd` tells Prometheus |
| `--web-cert FILE --web-key FILE` | a certificate of your own; read again when the files change |
| `--no-web` | no HTTPS at all |

`/healthz` needs no token and says `ok` (200), `not ready` or `no quorum` (503).

The certificate is the pool CA's, for the server's name and its advertised address, for 397 days
at most; the server renews it 30 days before its end. [security.md](security.md) says who can do
what there.

## Rules and dashboard

[packaging/prometheus/](../packaging/prometheus/) has recording rules and their tests, and
[packaging/grafana/gpupool.json](../packaging/grafana/gpupool.json) a dashboard. Every server says
the same of the pool, so the rules take `max without (instance, server)` of the `gpupool_pool_`
metrics: a sum over servers would count the pool once for each.

OpenTelemetry's collector scrapes the same text with its `prometheus` receiver. In the words of
its conventions (status: development), `gpupool_gpu_busy_ratio` is `hw.gpu.utilization`,
`gpupool_gpu_memory_used_bytes` is `hw.gpu.memory.usage`, `gpupool_gpu_memory_total_bytes` is
`hw.gpu.memory.limit`, `gpupool_gpu_energy_joules_total` is `hw.energy`, `gpupool_gpu_power_watts`
is `hw.power`, and `gpupool_gpu_temperature_celsius` is `hw.temperature`.

## How many

A server with 8 GPUs and 50 leases has about 450 series. There are at most 3,000: beyond that, the
rarest values of `subject`, `peer`, `user`, `class` and `xid` are put together as `_other`, and
`gpupool_metrics_limited` is 1. Names of users (but with `--metrics-users`), leases, processes and
programs are no labels. Counters of leases begin with the observer's process.

## All metrics

All names begin with `gpupool_`. Prometheus adds `instance`, and by `/sd` the labels `server` and
`pool`.

| metric | kind | labels | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return docs/metrics.md as it must be."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {' '.join(f'`{each}`' for each in metric.labels)} | "
        f"{metric.text} |\n"
        for metric in DECLARED
    ]
    histograms = [metric.name for metric in DECLARED if metric.kind == "histogram"]
    bounds = [
        f"| `{name}` | {bounds_of(name)[0]:g} | {bounds_of(name)[-1]:g} |\n" for name in histograms
    ]
    return (
        HEAD
        + "".join(rows)
        + "\n## Buckets\n\n14 of each histogram, in seconds, each twice the one before.\n\n"
        + "| histogram | first | last |\n| --- | --- | --- |\n"
        + "".join(bounds)
    )


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
