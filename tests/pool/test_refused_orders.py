"""The text of a refused order about a lease: the order, the reason, the place, the next step."""

from dataclasses import replace

import pytest
from tests.pool.policy_kit import ONE, A, B, upgraded
from tests.pool.test_lease_moves import Moving, gpu, gpu_drained, part_of_a_card, taken

from gpupool.pool.errors import DeniedError, GpupoolError, NotNowError, UsageError
from gpupool.pool.model import commands as c
from gpupool.pool.model.commands import SINCE
from gpupool.pool.model.formats import VERSION
from gpupool.pool.model.ids import LeaseId, Milliseconds
from gpupool.pool.model.relocation import Relocation, RelocationState
from gpupool.pool.model.results import RefusalKind, Result
from gpupool.pool.refused_orders import check_known_to_all, places_text, refusal_of
from gpupool.pool.view_building import moved_last

GPUS = '"gpupool gpus" shows the GPUs by number and id, and what is free on each'


Order = c.MoveLease | c.SuspendLease | c.ResumeLease


def answer(pool: Moving, order: Order) -> GpupoolError:
    result = pool.do(order)
    assert not result.ok
    return refusal_of(order, pool.lease(order.lease), result, pool.state)


def moving(pool: Moving, lease: LeaseId, *to: int) -> GpupoolError:
    gpus = tuple(gpu(each) for each in to)
    return answer(pool, c.MoveLease(lease, A, "ada", to=gpus))


def said(error: GpupoolError) -> tuple[str, str, str]:
    return error.what, error.why, error.hint


def test_a_lease_that_runs_runs_on_where_it_is() -> None:
    pool = Moving(gpu_count=2)
    lease = pool.hold((gpu(0), 40))
    taken(pool)
    error = moving(pool, lease, 1)
    assert isinstance(error, NotNowError)
    what = f"lease {lease:04x} was not moved, and runs on with GPU 0 of a"
    why = "GPU 1 of a has no room: 40960 MiB are needed, and 30720 MiB are free"
    assert said(error) == (what, why, GPUS)
    assert said(moving(pool, lease)) == (
        what,
        "no other GPU of a like GPU 0 has 40960 MiB free for it",
        GPUS,
    )


def test_a_suspended_lease_stays_so_where_there_is_no_room() -> None:
    pool = Moving()
    upgraded(pool.machine)
    lease = pool.hold((gpu(0), 40))
    name = f"{lease:04x}"
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    hint = f'"gpupool leases" shows when {name} runs; try again then'
    why = "it is suspending; try again when it runs"
    assert said(moving(pool, lease, 1)) == (
        f"lease {name} was not moved, and is being suspended",
        why,
        hint,
    )
    pool.let_go(lease)
    what = f"lease {name} was not moved, and stays suspended"
    hint = f'{GPUS}; "gpupool resume {name}" has it go on with its own once they have room'
    taken(pool)
    error = moving(pool, lease, 1)
    assert isinstance(error, NotNowError)
    why = "GPU 1 of a has no room: 40960 MiB are needed, and 30720 MiB are free"
    assert said(error) == (what, why, hint)
    assert moving(pool, lease, 0).what == f"lease {name} has these GPUs already"


def test_a_lease_that_is_being_moved_or_resumed_is_waited_for() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    name = f"{lease:04x}"
    assert pool.move(lease, gpu(1)).ok
    for _ in range(2):  # it lets go, and then it is brought back
        error = moving(pool, lease, 2)
        assert error.what == f"lease {name} was not moved, and is being moved"
        assert error.hint == f'"gpupool leases" shows when {name} runs; try again then'
        if pool.granted(0):
            pool.let_go(lease)
    error = answer(pool, c.SuspendLease(lease, "", "ada"))
    what = f"lease {name} was not suspended, and is being moved"
    assert (error.what, error.why) == (what, "it is being resumed; try again when it runs")


def test_what_can_never_be_is_one_sentence() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    error = moving(pool, lease, 0)
    assert isinstance(error, UsageError)
    assert said(error) == (f"lease {lease:04x} has these GPUs already", "", GPUS)
    assert moving(pool, lease, 1, 2).what == f"lease {lease:04x} has 1 GPU of a: name as many"


def test_a_mig_instance_and_a_drained_gpu_say_so() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    gpu_drained(pool)
    assert moving(pool, lease, 1).why.startswith("GPU 1 of a grants nothing now: ")
    part_of_a_card(pool)
    lease = pool.hold((gpu(2), 40))
    assert moving(pool, lease, 1).what == "GPU 1 of a is a MIG instance"


def test_who_has_suspended_it_resumes_it_and_what_has_ended_is_said() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    assert pool.do(c.SuspendLease(lease, "", "boss", operator=True)).ok
    pool.let_go(lease)
    error = answer(pool, c.ResumeLease(lease, "ada"))
    assert isinstance(error, DeniedError)
    what = f"lease {lease:04x} was not resumed, and stays suspended"
    assert said(error) == (what, "boss has suspended it, and an operator resumes it", "")
    assert pool.do(c.EndLease(lease, "done", "ada")).ok
    orders: tuple[Order, ...] = (
        c.MoveLease(lease, A, "ada"),
        c.SuspendLease(lease, "", "ada"),
        c.ResumeLease(lease, "ada"),
    )
    for order in orders:
        error = answer(pool, order)
        assert isinstance(error, UsageError)
        assert said(error) == (
            f"lease {lease:04x} has ended: done",
            "",
            '"gpupool leases" shows those that it has',
        )


def test_a_pool_with_an_older_server_says_which() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    command = c.MoveLease(lease, A, "ada")
    known = {each: replace(of, formats=VERSION) for each, of in pool.state.servers.items()}
    check_known_to_all(replace(pool.state, servers=known), command)
    older = replace(pool.state, servers={**known, A: replace(known[A], formats=6)})
    with pytest.raises(NotNowError) as refused:
        check_known_to_all(older, command)
    assert said(refused.value) == (
        "this pool cannot move a lease yet",
        "a has an older gpupool",
        "upgrade these servers first",
    )
    check_known_to_all(older, c.EndLease(lease, "done", "ada"))


@pytest.mark.parametrize(
    ("formats", "refused"), [(SINCE["move-lease"], False), (SINCE["move-lease"] - 1, True)]
)
def test_a_server_knows_an_order_from_the_version_on_with_which_it_came(
    formats: int, refused: bool
) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    known = {each: replace(of, formats=formats) for each, of in pool.state.servers.items()}
    state = replace(pool.state, servers=known)
    check_known_to_all(state, c.EndLease(lease, "done", "ada"))
    if not refused:
        check_known_to_all(state, c.MoveLease(lease, A, "ada"))
        return
    with pytest.raises(NotNowError) as found:
        check_known_to_all(state, c.MoveLease(lease, A, "ada"))
    assert found.value.why == "a, b have an older gpupool"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "GPU 0 of a"),
        (4, "GPU 0 of a, GPU 1 of a, GPU 2 of a, GPU 3 of a"),
        (5, "GPU 0 of a, GPU 1 of a, GPU 2 of a, GPU 3 of a and 1 more"),
        (6, "GPU 0 of a, GPU 1 of a, GPU 2 of a, GPU 3 of a and 2 more"),
    ],
)
def test_many_gpus_are_not_all_named(count: int, text: str) -> None:
    pool = Moving(gpu_count=8)
    lease = pool.hold(*((gpu(each), 40) for each in range(count)))
    assert places_text(pool.state, pool.lease(lease)) == text


def test_gpus_that_the_table_does_not_have_are_named_by_their_ids() -> None:
    pool = Moving()
    lease = pool.lease(pool.hold((gpu(0), 40), (gpu(1, B), 40)))
    b = pool.state.servers[B]
    state = replace(pool.state, servers={B: replace(b, gpus={})})
    assert places_text(state, lease) == f"GPU {gpu(0)} of {A}, GPU {gpu(1, B)} of b"


def test_what_a_lease_has_left_is_not_named_among_its_gpus() -> None:
    pool = Moving()
    lease = pool.lease(pool.hold((gpu(0), 40), (gpu(1, B), 40)))
    since, until = pool.state.now, Milliseconds(0)
    for state, text in (
        (RelocationState.GONE, "GPU 1 of b"),
        (RelocationState.LEAVING, "GPU 0 of a, GPU 1 of b"),
    ):
        goes = Relocation(state, 1, A, B, "ada", since, until)
        assert places_text(pool.state, replace(lease, relocation=goes)) == text


@pytest.mark.parametrize("kind", [RefusalKind.NEVER, RefusalKind.INVALID, RefusalKind.BUSY])
def test_the_gpus_are_shown_to_who_would_move_a_lease_alone(kind: RefusalKind) -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    orders: tuple[tuple[Order | c.RelocateLease, str], ...] = (
        (c.MoveLease(lease, A, "ada"), GPUS),
        (c.RelocateLease(lease, B, "ada"), GPUS),
        (c.SuspendLease(lease, "", "ada"), ""),
        (c.ResumeLease(lease, "ada"), ""),
    )
    for order, hint in orders:
        result = Result(False, kind.value, "why")
        error = refusal_of(order, pool.lease(lease), result, pool.state)
        assert (type(error), error.hint) == (
            NotNowError if kind is RefusalKind.BUSY else UsageError,
            hint,
        )


def test_the_latest_attempt_is_known_by_the_events() -> None:
    pool = Moving()
    lease = pool.hold((gpu(0), 40))
    name = f"{lease:04x}"
    assert name not in moved_last(pool.state.events)
    assert pool.move(lease, gpu(1)).ok
    assert name in moved_last(pool.state.events)
    number = pool.order_number(lease)
    assert pool.do(c.RefuseSuspension(lease, A, ONE, number, "no memory")).ok
    assert name in moved_last(pool.state.events)
    pool.go_on(lease)
    assert pool.do(c.SuspendLease(lease, "", "ada")).ok
    assert name not in moved_last(pool.state.events)
