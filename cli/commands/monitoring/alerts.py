"""``gpupool alerts``: try the alerts that a server sends."""

import time
from pathlib import Path

import click

from gpupool.pool.errors import ExitCode, UsageError
from gpupool.remoting.local.files import state_dir
from gpupool.remoting.local.terminal import say


@click.group()
def command() -> None:
    r"""Try the alerts that a server sends.

    A server that has /etc/gpupool/alerts.toml, or alerts.toml in its state directory, can send
    alerts to webhooks and by mail. "gpupool alerts test" tries the file:

    \b
      credentials = "/etc/gpupool/viewer.json"  # of a viewer: see below
      [[webhook]]
      url = "https://alerts.example.org/gpupool"
      secret_file = "/etc/gpupool/webhook.secret"     # optional
      [[email]]
      host = "smtp.example.org"
      from = "gpupool@example.org"
      to = ["ops@example.org"]
      user = "gpupool"                                # optional, with password_file
      password_file = "/etc/gpupool/smtp.password"

    \b
      gpupool token create --viewer --user alerts
      gpupool login --credentials /etc/gpupool/viewer.json

    The user that the server runs as must be able to read all of these files.
    """


@command.command()
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False),
    help="Read this alerts.toml; else that of the server here.",
)
@click.option("--state-dir", "folder", type=click.Path(file_okay=False), help="Of the server here.")
def test(path: str | None, folder: str | None) -> int:
    """Send one message to every receiver of alerts.toml, and show each delivery's result."""
    from gpupool.monitoring.health.alert_messages import NotSentError
    from gpupool.monitoring.health.alert_sender import receivers, sample_message
    from gpupool.monitoring.health.alert_settings import SYSTEM_FOLDER, find_settings, read_settings

    here = Path(folder) if folder else state_dir()
    found = Path(path) if path else find_settings(here)
    if found is None:
        why = f"there is no alerts.toml in {here} or {SYSTEM_FOLDER}"
        raise UsageError(
            "no alerts are set up here", why=why, hint='"gpupool alerts --help" has an example'
        )
    settings = read_settings(found)
    failed = False
    message = sample_message(int(time.time() * 1000))
    for name, attempt in receivers(settings, message, "test").items():
        try:
            attempt()
        except NotSentError as error:
            failed = True
            say(f"gpupool: {name}: not sent: {error}")
        else:
            say(f"gpupool: {name}: sent")
    return ExitCode.FAILED if failed else ExitCode.DONE
