"""Iterative solvers: whole ones of the worker, and loops here for a program's own functions.

A solver of matrices and arrays alone is one operation of the worker. With a `LinearOperator` or a
callback the loop runs here, because only this machine can call them; it waits in each turn.
"""

from __future__ import annotations

import functools
from typing import Any

import cupy as _cupy
import numpy as np

from cupyx import _objects
from cupyx.scipy.sparse._matrices import is_dense, issparse
from cupyx.scipy.sparse.linalg._operators import LinearOperator, aslinearoperator, identity

DENSE_MAX = 1 << 28
"""Bytes up to which an operator is applied to the identity, for solvers that run on the server."""


def dense_of(A: Any) -> Any:
    """Return an operator as an array; NotImplementedError for a large one."""
    if A.shape[0] * A.shape[1] * A.dtype.itemsize > DENSE_MAX:
        raise NotImplementedError(
            f"a LinearOperator of {A.shape} is too large here: the server has only matrices, and "
            "of your own functions only cg and gmres make one product after another"
        )
    return A.matmat(_cupy.eye(A.shape[1], dtype=A.dtype))


def with_matrices(function: Any) -> Any:
    """Return a function of the server for which a `LinearOperator` becomes an array."""

    def sent(value: object) -> Any:
        return dense_of(value) if isinstance(value, LinearOperator) else value

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("callback", None) is not None:
            raise NotImplementedError(
                "the server cannot call a function here: cg and gmres take a callback; "
                "on Linux, where CuPy is installed, `gpupool run --door cuda` has all"
            )
        return function(*map(sent, args), **{key: sent(value) for key, value in kwargs.items()})

    return call


def _is_matrix(value: object) -> bool:
    return value is None or issparse(value) or is_dense(value)


def _prepared(A: Any, M: object, x0: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """Return a system of equations for a loop here: two operators, the start and the right side."""
    operator = aslinearoperator(A)
    before = identity(operator) if M is None else aslinearoperator(M)
    if operator.shape[0] != operator.shape[1] or before.shape != operator.shape:
        raise ValueError(f"expected square matrices of one shape (shape: {operator.shape})")
    n = operator.shape[0]
    for name, each in (("b", b), ("x0", x0)):
        if each is not None and each.shape not in ((n,), (n, 1)):
            raise ValueError(f"{name} has incompatible dimensions")
    right = b.astype(operator.dtype).ravel()
    x = _cupy.zeros(n, operator.dtype) if x0 is None else x0.astype(operator.dtype).ravel()
    return operator, before, x, right


def _solver(name: str, loop: Any) -> Any:
    whole = _objects.function("sparse", f"linalg.{name}")

    def solve(
        A: object,
        b: object,
        x0: object = None,
        *,
        rtol: float = 1e-5,
        atol: Any = 0.0,
        maxiter: object = None,
        M: object = None,
        callback: Any = None,
        **more: Any,
    ) -> Any:
        atol = 0.0 if atol is None else float(atol)
        if callback is None and _is_matrix(A) and _is_matrix(M):
            more.pop("callback_type", None)  # of a callback, of which there is none
            rest = {"rtol": float(rtol), "atol": atol, "maxiter": maxiter, "M": M}
            return whole(A, b, x0, **rest, **more)
        operator, before, x, right = _prepared(A, M, x0, b)
        size = float(_cupy.linalg.norm(right)) if right.size else 0.0
        if size == 0:
            return right, 0
        limit = right.size * 10 if maxiter is None else maxiter
        enough = max(atol, rtol * size)
        return loop(operator, right, x, before, enough, limit, callback, **more)

    solve.__name__ = solve.__qualname__ = name
    solve.__doc__ = f"Solve a system of equations; see `scipy.sparse.linalg.{name}`."
    return solve


def _cg(A: Any, b: Any, x: Any, M: Any, enough: float, limit: int, callback: Any) -> Any:
    rest = b - A.matvec(x)
    along: Any = None
    before: Any = None
    for _ in range(limit):
        step = M.matvec(rest)
        now = _cupy.vdot(rest, step)
        along = step if along is None else step + (now / before) * along
        image = A.matvec(along)
        scale = now / _cupy.vdot(along, image)
        x = x + scale * along
        rest = rest - scale * image
        before = now
        if callback is not None:
            callback(x)
        if float(_cupy.linalg.norm(rest)) <= enough:
            return x, 0
    return x, limit


def _gmres(
    A: Any,
    b: Any,
    x: Any,
    M: Any,
    enough: float,
    limit: int,
    callback: Any,
    restart: Any = None,
    callback_type: object = None,
) -> Any:
    """Solve with a preconditioner at the right; the small problem is solved on this machine."""
    if callback_type not in (None, "x", "pr_norm"):
        raise ValueError(f"Unknown callback_type: {callback_type}")
    n = A.shape[0]
    count = min(20 if restart is None else restart, n)
    size = float(_cupy.linalg.norm(b))
    done = 0
    while True:
        made = M.matvec(x)
        rest = b - A.matvec(made)
        length = float(_cupy.linalg.norm(rest))
        if callback is not None and callback_type == "x":
            callback(made)
        elif callback is not None and done:
            callback(length / size)
        if length <= enough or done >= limit:
            return made, 0 if length <= enough else done
        basis = [rest / length]
        inner = np.zeros((count + 1, count), A.dtype)
        for at in range(count):
            image = A.matvec(M.matvec(basis[at]))
            for earlier, each in enumerate(basis):
                part = _cupy.vdot(each, image)
                inner[earlier, at] = part.get()
                image = image - part * each
            inner[at + 1, at] = step = float(_cupy.linalg.norm(image))
            if step <= np.finfo(A.dtype).eps * length:
                break
            basis.append(image / step)
        used = min(len(basis), count)
        first = np.zeros(used + 1, A.dtype)
        first[0] = length
        found = np.linalg.lstsq(inner[: used + 1, :used], first, rcond=None)[0]
        x = x + _cupy.stack(basis[:used], axis=1) @ _cupy.asarray(found)
        done += count


cg, gmres = _solver("cg", _cg), _solver("gmres", _gmres)
