"""The alerts as Prometheus reads them: ``alert_rules.py > packaging/prometheus/alerts.yml``."""

import sys

from gpupool.monitoring.health.alert_rules import RULES


def rules() -> str:
    """Return packaging/prometheus/alerts.yml as it must be."""
    lines = [
        "# The alerts of gpupool for Prometheus: generated, do not edit.",
        "# python packaging/alert_rules.py > packaging/prometheus/alerts.yml",
        "groups:",
        "  - name: gpupool",
        "    rules:",
    ]
    for rule in RULES:
        lines += [
            f"      - alert: Gpupool{rule.name}",
            f"        expr: '{rule.expression}'",
            f"        for: {rule.for_s:.0f}s",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f'          summary: "{rule.text}"',
            '          hint: "gpupool health"',
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(rules())
