"""Solve a Poisson problem on a grid by conjugate gradients: a sparse Laplacian, two ways."""

# pyright: reportUnknownLambdaType=false

import importlib
from typing import Any

import numpy as np

SIDE = 24


def laplacian(sparse: Any, side: int) -> Any:
    """Return the five-point Laplacian of a square grid."""
    line = sparse.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(side, side))
    same = sparse.identity(side)
    return (sparse.kron(line, same) + sparse.kron(same, line)).tocsr()


def own_cg(xp: Any, matrix: Any, right: Any, tolerance: float) -> tuple[Any, int]:
    """Return the solution and how many turns it took, by a loop of the program's own."""
    x = xp.zeros_like(right)
    rest = right - matrix @ x
    along, square = rest, rest @ rest
    for turn in range(1, 500):
        image = matrix @ along
        scale = square / (along @ image)
        x += scale * along
        rest = rest - scale * image
        new = rest @ rest
        if float(new) < tolerance**2:
            return x, turn
        along = rest + (new / square) * along
        square = new
    raise ArithmeticError("no convergence")


def run(xp: Any) -> list[Any]:
    """Return the solutions by the library, by a loop and with a preconditioner, and spectra."""
    sparse: Any = importlib.import_module("scipy.sparse" if xp is np else "cupyx.scipy.sparse")
    linalg: Any = importlib.import_module(f"{sparse.__name__}.linalg")
    matrix = laplacian(sparse, SIDE)
    at = xp.linspace(0, 1, SIDE)
    right = xp.outer(xp.sin(3 * at), xp.exp(-at)).ravel()
    found, info = linalg.cg(matrix, right, rtol=1e-12, atol=0.0)
    assert int(info) == 0
    mine, turns = own_cg(xp, matrix, right, 1e-11)
    assert turns < 200
    scale = 1.0 / matrix.diagonal()
    jacobi = linalg.LinearOperator(matrix.shape, matvec=lambda v: scale * v, dtype=matrix.dtype)
    again, info = linalg.cg(matrix, right, rtol=1e-12, atol=0.0, M=jacobi)
    assert int(info) == 0
    values = linalg.eigsh(matrix, k=3, which="LA", return_eigenvectors=False)
    direct = linalg.spsolve(matrix, right)
    corner = matrix[: SIDE // 2, : SIDE // 2].toarray()
    return [found, mine, again, direct, xp.sort(values), corner, matrix.nnz, linalg.norm(matrix)]
