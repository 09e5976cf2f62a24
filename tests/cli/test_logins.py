"""Logins to several pools: none takes the place of another, and one of them is in use."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import gpupool
from gpupool.cli import main
from gpupool.cli.commands.logins.use import command as use
from gpupool.cli.lib.options import pool_options
from gpupool.pool.errors import UsageError
from gpupool.pool.model.ids import TokenId
from gpupool.remoting.client.credentials import Credentials, load_credentials
from gpupool.remoting.daemon.login_writer import save_login
from gpupool.remoting.local import logins
from gpupool.remoting.protocol.addresses import parse_address


def login(pool: str, cluster: str, token: str = "t1", user: str = "ada") -> Credentials:
    where = (parse_address("10.0.0.1"),)
    return Credentials(cluster, pool, user, TokenId(token), bytes(16), "PEM", where)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GPUPOOL_CREDENTIALS", "GPUPOOL_POOL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "gpupool"


@click.command()
@pool_options
def which(credentials: str | None) -> None:
    click.echo(credentials)


def asked(*arguments: str, **variables: str) -> str:
    result = CliRunner().invoke(which, arguments, env=variables, catch_exceptions=False)
    return Path(result.output.strip()).name


def test_a_new_pool_does_not_take_over_the_login_to_another_one(folder: Path) -> None:
    assert save_login(login("lab", "c1")) == "You (ada) are logged in as its operator."
    said = save_login(login("play", "c2"))
    assert "Your login to another pool stays in use; for this one: gpupool use play" in said
    assert load_credentials(folder / "credentials.json").pool == "lab"
    assert load_credentials(folder / "pools" / "play.json").pool == "play"
    assert [(each.name, each.current) for each in logins.logins()] == [
        ("lab", True), ("play", False),
    ]  # fmt: skip
    said = save_login(login("play", "c3"))  # another pool of the same name
    assert "gpupool use play-2" in said
    # The same pool again replaces its login, and keeps what it replaces.
    assert "Your former login was kept as" in save_login(login("lab", "c1", "t2"))


def test_a_given_file_is_not_taken_over_either(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPOOL_CREDENTIALS", str(tmp_path / "mine.json"))
    save_login(login("lab", "c1"))
    said = save_login(login("play", "c2"))
    assert f"--credentials {tmp_path / 'mine-play.json'}" in said
    assert load_credentials(tmp_path / "mine.json").pool == "lab"


def test_commands_talk_to_the_pool_that_is_named_or_in_use(folder: Path) -> None:
    assert asked() == ""
    for pool, cluster in (("lab", "c1"), ("play", "c2")):
        save_login(login(pool, cluster))
    assert asked("--pool", "play") == asked(GPUPOOL_POOL="play") == "play.json"
    assert asked("--pool", "lab") == "credentials.json"
    result = CliRunner().invoke(use, ["play"], catch_exceptions=False)
    assert "play is in use: pool play, as ada" in result.output
    assert asked() == "play.json"
    assert asked("--pool", "lab") == asked(GPUPOOL_POOL="lab") == "credentials.json"
    assert asked("--credentials", "x.json") == asked(GPUPOOL_CREDENTIALS="x.json") == "x.json"
    assert asked("--pool", "lab", GPUPOOL_CREDENTIALS="x.json") == "credentials.json"
    assert asked("--credentials", "x.json", GPUPOOL_POOL="lab") == "x.json"
    CliRunner().invoke(use, ["lab"], catch_exceptions=False)
    assert asked() == ""
    CliRunner().invoke(use, ["play"], catch_exceptions=False)
    (folder / "pools" / "play.json").unlink()
    assert asked() == ""  # rather the first login than none


def test_python_programs_use_the_login_that_commands_use(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pool, cluster in (("lab", "c1"), ("play", "c2")):
        save_login(login(pool, cluster))
    assert gpupool.Pool().credentials == str(folder / "credentials.json")
    assert gpupool.Pool("play").credentials == str(folder / "pools" / "play.json")
    CliRunner().invoke(use, ["play"], catch_exceptions=False)
    assert gpupool.Pool().credentials == str(folder / "pools" / "play.json")
    monkeypatch.setenv("GPUPOOL_POOL", "lab")
    assert gpupool.Pool().credentials == str(folder / "credentials.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUPOOL_CREDENTIALS", "mine.json")
    assert gpupool.Pool().credentials == str(tmp_path / "mine.json")  # wherever the holder lives
    assert gpupool.Pool("play").credentials == str(folder / "pools" / "play.json")
    assert gpupool.Pool(credentials="x.json").credentials == str(tmp_path / "x.json")


def test_what_cannot_be_used_is_said(folder: Path) -> None:
    save_login(login("lab", "c1"))
    with pytest.raises(UsageError, match="no login named paly") as caught:
        asked("--pool", "paly")
    assert caught.value.why == "your logins: lab"
    with pytest.raises(UsageError, match="exclude"):
        asked("--pool", "lab", "--credentials", "x.json")
    for name in ("../x", "", ".x", "a/b"):
        with pytest.raises(UsageError, match="no name for a login"):
            logins.check_login_name(name)


def test_the_list_marks_the_one_in_use(folder: Path) -> None:
    assert CliRunner().invoke(use, []).output.startswith("gpupool: you have no login; give a")
    save_login(login("lab", "c1"))
    save_login(login("play", "c2"))
    lines = CliRunner().invoke(use, [], catch_exceptions=False).output.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["*", "lab"], ["play", "play"]]


def test_whoami_says_who_and_until_when(live_pool: Any) -> None:
    done = live_pool.run("whoami")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert (lines["pool"], lines["role"]) == ("lab", "operator"), done.stderr
    assert " UTC, in " in lines["expires"]
    assert lines["login"] == live_pool.env["GPUPOOL_CREDENTIALS"]


def test_a_token_says_before_it_expires_and_is_renewed(
    live_pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    for variable, value in live_pool.env.items():
        monkeypatch.setenv(variable, value)

    def said(*words: str) -> tuple[str, str]:
        code = main.run(list(words))
        out, err = capfd.readouterr()
        assert code == 0, err
        return out, err

    make = ("token", "create", "--user", "soon", "--expires", "2d", "--json")
    token = json.loads(said(*make)[0])["token"]
    mine = ("--credentials", str(tmp_path / "soon.json"))
    said("login", token, *mine)
    out, err = said("whoami", *mine)
    name = dict(line.split(maxsplit=1) for line in out.splitlines())["token"]
    renew = f"gpupool token renew {name}"
    assert err == f"gpupool: your token expires in 47h59m; an operator renews it: {renew}\n"
    assert " UTC, in 47h59m\n" in out
    said("token", "renew", name)
    out, err = said("whoami", *mine)
    assert (err, "in more than 14 days" in out) == ("", True)
