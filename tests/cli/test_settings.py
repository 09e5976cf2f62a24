"""Settings: the precedence of sources, the origin of a value, and refused typos."""

import json
import os
from pathlib import Path

import pytest

from gpupool.cli.lib.settings import ConfigFile, check_sections, options_of, parse
from gpupool.cli.main import run
from gpupool.pool.errors import UsageError

ETC = Path("/etc/gpupool/config.toml")
HERE = Path("gpupool.toml")


def file_of(path: Path, text: str) -> ConfigFile:
    return ConfigFile(path, parse(text.encode(), path))


def test_the_nearer_file_wins_and_is_named() -> None:
    files = [
        file_of(HERE, "[run]\ncount = 2\n"),
        file_of(ETC, "[run]\ncount = 4\nwait = '10m'\n"),
    ]
    found = options_of(files, ("run",), ["count", "wait"])
    assert (found["count"].value, found["count"].path) == (2, HERE)
    assert (found["wait"].value, found["wait"].path) == ("10m", ETC)


def test_underscores_are_dashes() -> None:
    found = options_of([file_of(HERE, "[join]\nstate_dir='/x'\n")], ("join",), ["state-dir"])
    assert found["state-dir"].value == "/x"


def test_unknown_option_has_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        options_of([file_of(HERE, "[run]\ncuont = 2\n")], ("run",), ["count", "wait"])
    assert caught.value.hint == "did you mean count?"
    assert "gpupool.toml" in caught.value.what


def test_unknown_table_has_a_suggestion() -> None:
    with pytest.raises(UsageError, match="statsu") as caught:
        check_sections([file_of(HERE, "[statsu]\n")], ["status", "run"])
    assert caught.value.hint == "did you mean status?"


@pytest.mark.parametrize("text", ["[run", "count = ", "a = 1\na = 2", "\udce4"])
def test_damaged_files_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not valid TOML"):
        parse(text.encode("utf-8", "surrogateescape"), HERE)


def test_a_table_must_be_a_table() -> None:
    with pytest.raises(UsageError, match="must be a table"):
        check_sections([file_of(HERE, "run = 3\n")], ["run"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def settings(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[object, str]]:
    assert run(["config", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == 1
    return {each["name"]: (each["value"], each["origin"]) for each in body["settings"]}


def test_variables_are_called_as_the_options_are(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPOOL_RUN_FILTER", "gpu.name = H200; gpu.memory >= 40GiB")
    monkeypatch.setenv("GPUPOOL_JOIN_LABEL", "rack=r3 room=north")
    found = settings(capsys)
    assert found["run.filter"][1] == "$GPUPOOL_RUN_FILTER"
    assert "42949672960" in str(found["run.filter"][0])
    assert found["join.label"][1] == "$GPUPOOL_JOIN_LABEL"
    assert found["token.create.user"][1] == "default"


def test_flag_environment_files_default(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert settings(capsys)["run.wait"] == (None, "default")
    user = home / "config" / "gpupool" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text("[run]\nwait = '1m'\nfraction = 0.5\n")
    assert settings(capsys)["run.wait"] == (60.0, str(user))
    assert settings(capsys)["run.fraction"] == (0.5, str(user))
    here = home / "gpupool.toml"
    here.write_text("[run]\nwait = '2m'\n[token.create]\nexpires = '7d'\n")
    assert settings(capsys)["run.wait"] == (120.0, str(here))
    assert settings(capsys)["token.create.expires"] == (7 * 86400.0, str(here))
    monkeypatch.setenv("GPUPOOL_RUN_WAIT", "3m")
    assert settings(capsys)["run.wait"] == (180.0, "$GPUPOOL_RUN_WAIT")


def test_a_bad_file_is_one_clear_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "gpupool.toml").write_text("[run]\nfractoin = 0.5\n")
    assert run(["run", "true"]) == 2
    error = capsys.readouterr().err
    assert "did you mean fraction?" in error
    assert "Traceback" not in error


def test_a_bad_value_in_a_file_is_a_usage_error(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "gpupool.toml").write_text("[run]\nfraction = 1.5\n")
    assert run(["run", "true"]) == 2
    assert "1.5 is no share of a GPU" in capsys.readouterr().err


def test_one_value_of_a_repeatable_option_needs_no_list(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "gpupool.toml").write_text("[run]\nfilter = 'gpu.memory >= 40GiB'\n")
    assert "42949672960" in str(settings(capsys)["run.filter"][0])
    (home / "gpupool.toml").write_text("[run]\nfilter = 5\n")
    assert run(["run", "true"]) == 2
    assert "'5' is not a filter" in capsys.readouterr().err


def test_a_folder_that_is_gone_has_no_settings(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = home / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert settings(capsys)["run.wait"] == (None, "default")
    assert run(["version"]) == 0


def test_the_history_is_kept_as_the_settings_say() -> None:
    from gpupool.monitoring.history.history_settings import HistorySettings
    from gpupool.remoting.daemon.join_options import history_settings

    day = 86_400
    assert history_settings(day, 30 * day, 731 * day, 1 << 30) == HistorySettings()
    for wrong in (
        (day, 30 * day, 731 * day, 1 << 20),
        (60, 30 * day, 731 * day, 1 << 30),
        (day, 3600, 731 * day, 1 << 30),
        (31 * day, 30 * day, 731 * day, 1 << 30),
    ):
        with pytest.raises(UsageError):
            history_settings(*wrong)
