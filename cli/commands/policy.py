"""``gpupool policy``: limits and hours of GPU use, by user."""

import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpupool.cli.lib.options import json_option, pool_options, request_options
from gpupool.cli.lib.output import print_json, run_async
from gpupool.pool.errors import ConflictError, ExitCode, GpupoolError, UsageError
from gpupool.remoting.local.logins import connected
from gpupool.remoting.local.terminal import say
from gpupool.remoting.program.lease_source import Wanted, unknown_text

if TYPE_CHECKING:
    from gpupool.remoting.protocol.messages import PolicyIs, PolicyVerdict

LOST_LINES_MIN = 4
"""A policy that loses fewer lines than this is not asked about, unless it becomes empty."""

NEW = """\
# The policy of this pool; "gpupool policy --help" has an example.
# [defaults]              # for each user
# max_gpus = 2.5
# idle_timeout = "2h"
"""


@click.group()
def command() -> None:
    r"""Show, check and change the policy: limits, classes of users, hours, reservations.

    \b
    A policy is a TOML file. "gpupool policy check FILE" names each mistake with its line:
      [defaults]                       # for each user
      max_gpus = 2.5
      idle_timeout = "2h"
      [class.students]
      users = ["ada", "s-*"]
      max_gpus = 16                    # all of them together
      max_gpus_per_user = 2
      max_lease_time = "12h"
      [user.boss]
      max_gpus = "none"
    """


@command.command("show")
@click.option("--version", type=click.IntRange(1), help="An earlier version that is kept.")
@pool_options
@json_option
def show(credentials: str | None, version: int | None, as_json: bool) -> None:
    """Print the policy in force, as it was written."""
    from gpupool.remoting.protocol.messages.declaration import clean_lines

    policy = run_async(lambda: _get(credentials, version or 0))
    text = _unpack(policy)
    if as_json:
        print_json(version=policy.version, by=policy.by, at=policy.at, text=text)
    elif policy.version:
        say(f"gpupool: version {policy.version}, applied by {policy.by} at {_when(policy.at)}")
        shown = clean_lines(text)
        click.echo(shown, nl=not shown.endswith("\n"))
        if shown != text:
            say("gpupool: � stands for what would command a terminal; --json has it as it is")
    else:
        say("gpupool: the pool has no policy; gpupool policy edit writes the first")


@command.command("history")
@pool_options
@json_option
def history(credentials: str | None, as_json: bool) -> None:
    """List the versions that are kept."""

    async def ask() -> "tuple[PolicyIs, ...]":
        async with connected(credentials) as pool:
            return await pool.policy_history()

    versions = run_async(ask)
    if as_json:
        print_json(versions=[{"version": v.version, "by": v.by, "at": v.at} for v in versions])
        return
    if not versions:
        say("gpupool: the pool has no policy; gpupool policy edit writes the first")
    for each in versions:
        click.echo(f"{each.version:>4}  {_when(each.at)}  {each.by}")


@command.command("check")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@json_option
def check(file: str, as_json: bool) -> None:
    """Find mistakes in FILE; "gpupool policy explain" says how it treats a request."""
    _checked(_read(file), file)
    if as_json:
        print_json(problems=[])
    else:
        say(f"gpupool: {file} has no mistakes")


@command.command("explain")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), required=False)
@request_options
@click.option("--user", help="User of the request (default: you).")
@pool_options
@json_option
def explain(
    credentials: str | None, file: str | None, user: str | None, wanted: Wanted, as_json: bool
) -> int:
    r"""Explain the policy's verdict on a request, and list leases to suspend for it.

    \b
      gpupool policy explain -n 2 -p 0.5
      gpupool policy explain --user ada -n 8 new.toml

    The request is written as for "gpupool run"; without options it is one whole GPU. Nothing is
    asked for. Of each lease of lower priority it says whether it would be suspended, what that
    would move, and else why not. With FILE, that policy is used and not the one in force. The exit
    code is 0 when the request would be granted, 1 when it is denied, 75 when it would have to wait.
    """
    packed = _checked(_read(file), file) if file is not None else b""
    request = wanted.request("policy explain")

    async def ask() -> "tuple[PolicyVerdict, tuple[str, ...]]":
        async with connected(credentials) as pool:
            verdict = await pool.check_policy(user or "", request, packed)
            return verdict, tuple(pool.unknown_servers(request.servers))

    verdict, unknown = run_async(ask)
    lines = verdict.lines
    if unknown:
        lines = (unknown_text(unknown), *lines)
    if wanted.wait_s == 0.0 and verdict.kind == "busy":
        lines = (*lines, "with --no-wait it is refused at once, and nothing is suspended for it")
    if as_json:
        print_json(kind=verdict.kind, lines=lines)
    else:
        for line in lines:
            click.echo(line)
    codes = {"": ExitCode.DONE, "busy": ExitCode.NOT_NOW}
    return codes.get(verdict.kind, ExitCode.FAILED)


@command.command("apply")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--base",
    type=click.IntRange(0),
    help="The version that FILE was made from; refuse when another one is in force.",
)
@click.option("--yes", is_flag=True, help="Do not ask, even if most of the policy would go.")
@pool_options
def apply(credentials: str | None, file: str, base: int | None, yes: bool) -> None:
    """Put the policy in FILE in force; operators only.

    It applies to all later grants. Leases that exist are kept. Where FILE has much less in it than
    the policy in force, it asks first.
    """
    text = _read(file)
    packed = _checked(text, file)
    if not yes:
        before = run_async(lambda: _get(credentials, 0))
        lost = loss_text(_unpack(before), text) if before.version else ""
        if lost:
            _ask_to_lose(f"{file} {lost} version {before.version}, the policy in force")
            base = before.version if base is None else base  # which is what was looked at
    version = run_async(lambda: _put(credentials, packed, base))
    say(f"gpupool: version {version} of the policy is in force")


@command.command("edit")
@pool_options
def edit(credentials: str | None) -> None:
    """Change the policy in $EDITOR, and put it in force; operators only.

    If the text has mistakes, or another operator was faster, it is kept in a file.
    """
    from gpupool.cli.lib.policy_draft import draft_of, keep

    before = run_async(lambda: _get(credentials, 0))
    text = _unpack(before) if before.version else NEW
    with draft_of(text) as draft:
        try:
            _open_editor(str(draft))
        except GpupoolError as error:
            if _read(str(draft)) != text:
                error.hint = f"your text is kept in {keep(draft)}"
            raise
        changed = _read(str(draft))
        if changed == text:
            say("gpupool: nothing was changed")
            return
        try:
            packed = _checked(changed, draft.name)
            version = run_async(lambda: _put(credentials, packed, before.version))
        except GpupoolError as error:
            name = keep(draft)
            say(f"gpupool: your text is kept in {name}")
            if isinstance(error, ConflictError):
                error.hint = f"see gpupool policy show, then: gpupool policy apply {name}"
            raise
    say(f"gpupool: version {version} of the policy is in force")


def loss_text(before: str, after: str) -> str:
    """Return how much of a policy another text drops, if that may be a slip; empty if not."""
    old, new = _meant_lines(before), _meant_lines(after)
    if not old:
        return ""
    if not new:
        return f"is empty, and would end all {len(old)} lines of"
    if len(old) - len(new) >= LOST_LINES_MIN and len(new) * 2 < len(old):
        return f"has {len(new)} line{'s' * (len(new) > 1)} in place of the {len(old)} of"
    return ""


def _meant_lines(text: str) -> list[str]:
    """Return the lines that are neither empty nor a comment."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _ask_to_lose(what: str) -> None:
    """Ask on a terminal; elsewhere refuse.

    Raises:
        UsageError: when nobody can be asked, or the answer is no.
    """
    if not sys.stdin.isatty():
        raise UsageError(what, hint="--yes applies it without asking")
    if not click.confirm(f"gpupool: {what}. Apply it?", err=True):
        raise UsageError("nothing was changed")


# --- inside ---------------------------------------------------------------------------------------


async def _get(credentials: str | None, version: int) -> "PolicyIs":
    async with connected(credentials) as pool:
        return await pool.policy(version)


async def _put(credentials: str | None, packed: bytes, base: int | None) -> int:
    async with connected(credentials) as pool:
        if base is None:
            base = (await pool.policy()).version
        return await pool.put_policy(packed, base)


def _unpack(policy: "PolicyIs") -> str:
    """Return the text as it was written. It came as bytes, so nobody has looked at it yet."""
    from gpupool.pool.transitions.policy_versions import unpack_text

    return unpack_text(policy.packed)


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot read {file}", why=why) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no text in UTF-8") from error


def _checked(text: str, name: str) -> bytes:
    """Return the packed text.

    Raises:
        UsageError: with every mistake of it on a line of its own.
    """
    import time

    from gpupool.pool.policy.policy_document import PolicyTextError, parse_policy
    from gpupool.pool.transitions.policy_versions import UnpackError, pack_text
    from gpupool.remoting.protocol.time_zones import zone_of

    now_ms = time.time_ns() // 1_000_000
    try:
        parse_policy(text, lambda zone: zone_of(zone, now_ms))
        return pack_text(text)
    except PolicyTextError as error:
        count = len(error.problems)
        what = f"{name} has {count} mistake{'s' if count > 1 else ''}"
        why = "\n  ".join(str(problem) for problem in error.problems)
        hint = '"gpupool policy --help" has an example'
        raise UsageError(what, why=why, hint=hint) from error
    except UnpackError as error:
        raise UsageError(f"{name} is too large", why=str(error)) from error


def _open_editor(name: str) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        done = subprocess.run([*shlex.split(editor), name], check=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot start the editor {editor!r}", hint="set EDITOR") from error
    if done.returncode:
        raise GpupoolError(f"the editor ended with {done.returncode}")


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
