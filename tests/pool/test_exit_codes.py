"""Exit codes: programs of users rely on these numbers, which docs/cli.md tells them."""

from gpupool.pool.errors import ExitCode, GpupoolError, UsageError


def test_exit_codes_stay_what_they_are() -> None:
    assert {each.name: each.value for each in ExitCode} == {
        "DONE": 0,
        "FAILED": 1,
        "USAGE": 2,
        "UNHEALTHY": 3,
        "NOT_NOW": 75,
        "RUN_FAILED": 125,
        "NOT_EXECUTABLE": 126,
        "NOT_FOUND": 127,
    }
    # Made here, so that the map of tests/mutation knows that this test runs lines of the module.
    assert (GpupoolError("x").exit_code, UsageError("x").exit_code) == (1, 2)
