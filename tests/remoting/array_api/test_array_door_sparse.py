"""Sparse matrices: objects of the worker behind handles, here of SciPy on an emulated GPU."""

import gc
import importlib
import operator
import pickle  # noqa: TID251 - of this process, written where the program says
from typing import Any

import numpy as np
import pytest
from door_cases import close, cupyx, package, refused

host = pytest.importorskip("scipy.sparse")
HOST = host.random(9, 7, 0.4, "csr", random_state=3)
FORMATS = ("csr", "csc", "coo")
sparse = package("scipy.sparse")


@pytest.mark.parametrize("form", FORMATS)
def test_a_matrix_is_made_and_fetched(cp: Any, sparse: Any, form: str) -> None:
    made = getattr(sparse, f"{form}_matrix")(HOST)
    assert (made.shape, made.dtype, made.nnz, made.format) == ((9, 7), HOST.dtype, HOST.nnz, form)
    assert (made.toarray().get() == HOST.toarray()).all()
    assert made.get().format == form
    assert (made.get() != HOST).nnz == 0
    dense = getattr(sparse, f"{form}_matrix")(cp.asarray(HOST.toarray()))
    assert (dense.toarray() == made.toarray()).all()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "call",
    [
        lambda a, x: a @ x[:7],
        lambda a, x: a.T @ x[:9],
        lambda a, x: x[:9] @ a,
        lambda a, _x: a.T @ a,
        lambda a, _x: a + a.multiply(a) - 0.5 * a,
        lambda a, _x: abs(-a).power(2),
        lambda a, _x: a.tocsr()[2:5, [0, 3, 1]],
        lambda a, _x: a.tocsr()[1],
        lambda a, _x: a.sum(),
        lambda a, _x: a.sum(axis=0),
        lambda a, _x: a.mean(axis=1),
        lambda a, _x: a.max(axis=0),
        lambda a, _x: a.tocsc().tocoo().tocsr().astype(np.float32),
        lambda a, _x: a.reshape(7, 9),
        lambda a, _x: a.tocsr() > 0.5,
        lambda a, _x: a / 3,
        lambda a, _x: a.diagonal(1),
    ],
)
def test_what_programs_do_gives_what_scipy_gives(
    cp: Any, sparse: Any, form: str, call: Any
) -> None:
    x = np.arange(12.0)
    wanted = call(HOST.asformat(form), x)
    made = call(getattr(sparse, f"{form}_matrix")(HOST), cp.asarray(x))
    if host.issparse(wanted):
        assert (made.format, made.dtype, made.shape) == (wanted.format, wanted.dtype, wanted.shape)
        made, wanted = made.toarray(), wanted.toarray()
    assert np.allclose(cp.asnumpy(made), np.asarray(wanted))


def test_a_loop_of_products_waits_for_nothing(cp: Any, sparse: Any) -> None:
    matrix = sparse.csr_matrix(HOST.T @ HOST)
    x, package = cp.ones(7), importlib.import_module("cupyx")
    with package.allow_synchronize(False):
        before = cp._door.pool.current()._sender.sequence
        for _ in range(20):
            x = matrix @ x
            x = matrix.T @ (x * 0.1)
        assert cp._door.pool.current()._sender.sequence - before >= 80
    dense = (HOST.T @ HOST).toarray()
    wanted = np.ones(7)
    for _ in range(20):
        wanted = dense.T @ (dense @ wanted * 0.1)
    assert np.allclose(x.get(), wanted)


def test_the_arrays_of_a_matrix_are_no_copies(cp: Any, sparse: Any) -> None:
    made = sparse.csr_matrix(HOST)
    made.data[:] = 2.0
    assert float(made.sum()) == 2 * HOST.nnz
    made.data = cp.ones(HOST.nnz, np.float32)
    assert made.dtype == np.float32
    assert float(made.sum()) == HOST.nnz
    made[0, 0] = 5.0
    assert float(made[0, 0]) == 5.0
    made.setdiag(0)
    made.eliminate_zeros()
    assert made.nnz == np.count_nonzero(made.toarray().get())


def test_wrong_calls_are_errors_at_once(cp: Any, sparse: Any) -> None:
    made = sparse.csr_matrix(HOST)
    refused(
        (ValueError, "dimension mismatch", lambda: made @ cp.ones(3)),
        (ValueError, "Scalar operands", lambda: made @ 3),
        (
            ValueError,
            "1-D cupy arrays",
            lambda: sparse.csr_matrix((HOST.data, HOST.indices, HOST.indptr)),
        ),
        (ValueError, "Only bool, float32", lambda: sparse.csr_matrix(cp.arange(6).reshape(2, 3))),
        (IndexError, "", lambda: made[9, 0]),
        (ValueError, r"inconsistent|mismatch|shape", lambda: made + sparse.csr_matrix((3, 3))),
        (NotImplementedError, "", made.tolil),
        (AttributeError, "no such name either", lambda: sparse.bsr_matrix),
    )


def test_a_matrix_survives_a_pickle(sparse: Any) -> None:
    made = pickle.loads(pickle.dumps(sparse.csc_matrix(HOST)))
    assert (made.get() != HOST).nnz == 0


def test_memory_of_a_matrix_is_accounted_and_given_back(cp: Any, sparse: Any) -> None:
    pool = cp.get_default_memory_pool()

    def used() -> int:
        gc.collect()
        cp.zeros(1)  # what was dropped goes with this call
        cp.cuda.Device().synchronize()
        return pool.used_bytes()

    before = used()
    while before != (before := used()):
        pass  # what earlier tests have dropped may go later
    made = sparse.random(400, 400, 0.2, "csr")
    assert used() - before >= 12 * made.nnz
    del made
    assert used() - before < 4096


OUTSIDE = [
    *((indices, [0, 1, 2, 3]) for indices in ([0, 1, 99], [0, -1, 1])),
    *(([0, 1, 2], indptr) for indptr in ([0, 3, 1, 3], [0, 1, 2, 99])),
]


@pytest.mark.parametrize(("indices", "indptr"), OUTSIDE)
def test_indices_that_reach_outside_are_refused(
    cp: Any, sparse: Any, indices: Any, indptr: Any
) -> None:
    parts = (cp.ones(3), cp.array(indices, "i4"), cp.array(indptr, "i4"))
    with pytest.raises(ValueError, match=r"fit|index|ind"):
        sparse.csr_matrix(parts, shape=(3, 3))
    made = sparse.csr_matrix((cp.ones(3), cp.arange(3, dtype="i4"), cp.arange(4, dtype="i4")))
    made.indices[:] = parts[1]
    made.indptr[:] = parts[2]
    with pytest.raises(ValueError, match="do not fit"):
        made.tocsc().get()


def test_a_matrix_that_the_device_has_no_room_for_is_an_error(cp: Any, sparse: Any) -> None:
    none, huge = cp.cuda.memory.OutOfMemoryError, 1 << 40
    place = (cp.asarray([huge]), cp.asarray([0]))
    refused(
        (none, "", lambda: sparse.csr_matrix((huge, 3))),
        (none, "", lambda: sparse.eye(huge)),
        (none, "", lambda: sparse.coo_matrix((huge, 3)).tocsr().nnz),
        (none, "", lambda: sparse.coo_matrix((huge, huge)).sum(axis=0)),
        (none, "", lambda: sparse.random(huge, 2)),
        (none, "", lambda: sparse.csr_matrix((cp.ones(1), place))),
    )
    assert sparse.coo_matrix((huge, 3)).T.shape == (3, huge)


def test_solvers_with_the_programs_own_functions(cp: Any, sparse: Any) -> None:
    linalg = cupyx("scipy.sparse.linalg")
    rng = np.random.default_rng(2)
    half = rng.random((12, 12))
    dense = half @ half.T + 12 * np.eye(12)
    right = rng.random(12)
    wanted = np.linalg.solve(dense, right)
    matrix, b = sparse.csr_matrix(cp.asarray(dense)), cp.asarray(right)
    operator = linalg.LinearOperator(dense.shape, matvec=lambda v: matrix @ v, dtype=float)
    for solve in (linalg.cg, linalg.cgs, linalg.bicgstab, linalg.gmres):
        for system in (matrix, operator):
            found, info = solve(system, b, rtol=1e-11)
            assert int(info) == 0
            close(found, wanted, 1e-5)
    scale, values = 1.0 / matrix.diagonal(), np.linalg.eigvalsh(dense)
    jacobi = linalg.LinearOperator(dense.shape, matvec=lambda v: scale * v, dtype=float)
    close(linalg.cg(matrix, b, rtol=1e-12, M=jacobi)[0], wanted, 1e-5)
    close(linalg.spsolve(matrix, b), wanted)
    largest = linalg.eigsh(matrix, k=3, which="LA", return_eigenvectors=False)
    close(cp.sort(largest), values[-3:])
    assert np.isclose(float(linalg.norm(matrix)), np.linalg.norm(dense))
    turns: list[Any] = []
    linalg.cg(matrix, b, callback=turns.append)
    assert turns
    for solve in (linalg.cgs, linalg.minres):
        with pytest.raises(NotImplementedError, match="--door cuda"):
            solve(matrix, b, callback=turns.append)
    assert np.allclose(linalg.minres(operator, b, tol=1e-12)[0].get(), wanted)
    assert np.allclose((2 * operator + operator).matvec(b).get(), 3 * dense @ right)
    assert np.allclose(linalg.splu(matrix.tocsc()).solve(b).get(), wanted)


def test_what_is_put_together_has_the_format_of_cupy(cp: Any, sparse: Any) -> None:
    rows = sparse.csr_matrix(cp.eye(3))
    columns = rows.tocsc()
    for form, made in (
        ("coo", sparse.kron(rows, rows)),
        ("csc", sparse.kron(rows, rows, "csc")),
        ("coo", sparse.bmat([[rows, rows]])),
        ("csr", sparse.bmat([[rows], [rows]])),
        ("csr", sparse.bmat([[rows, rows]], format="csr")),
        ("coo", sparse.hstack([rows, rows])),
        ("csc", sparse.hstack([columns, columns])),
        ("csr", sparse.vstack([rows, rows])),
        ("coo", sparse.vstack([columns, rows])),
    ):
        assert made.format == form
    made = sparse.block_diag([(1, 2), [[3]]])
    assert made.toarray().tolist() == [[1, 2, 0], [0, 0, 3]]


def test_what_is_made_of_dense_operands_is_a_matrix(cp: Any, sparse: Any) -> None:
    """SciPy will make arrays of them, and warns of that since 1.18."""
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    for made, wanted in (
        (sparse.kron(cp.asarray(a), cp.eye(2)), np.kron(a, np.eye(2))),
        (sparse.kronsum(cp.asarray(a), cp.eye(2)), np.kron(np.eye(2), a) + np.eye(4)),
        (sparse.tril(cp.asarray(a)), np.tril(a)),
        (sparse.triu(cp.asarray(a), 1), np.triu(a, 1)),
    ):
        assert sparse.isspmatrix(made)
        np.testing.assert_array_equal(made.toarray().get(), wanted)


@pytest.mark.parametrize(("number", "kind"), [(2, "d"), (0.5, "d"), (True, "?"), (2j, "D")])
def test_truth_values_times_a_number_in_place_are_of_a_type_of_cusparse(
    cp: Any, sparse: Any, number: Any, kind: str
) -> None:
    truth = sparse.csr_array(cp.asarray(np.eye(2, dtype=bool)))
    for change, factor, char in ((operator.imul, number, kind), (operator.itruediv, 4, "d")):
        made = truth.copy()
        assert change(made, factor) is made
        assert made.dtype.char == char
        assert made.toarray().get()[1, 1] == (number if change is operator.imul else 0.25)
