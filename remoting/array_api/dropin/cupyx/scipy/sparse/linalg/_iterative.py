"""Iterative solvers: whole ones of the worker, and loops here for a program's own functions.

A solver of matrices and arrays alone is one operation of the worker. With a `LinearOperator` or a
callback the loop runs here, because only this machine can call them; it waits in each turn.
"""

from __future__ import annotations

from typing import Any

import cupy as _cupy
import numpy as np

from cupyx.scipy.sparse import _wire
from cupyx.scipy.sparse._base import is_dense, issparse
from cupyx.scipy.sparse.linalg._operators import IdentityOperator, aslinearoperator


def _checked(A: Any, M: Any, x0: Any, b: Any) -> int:
    """Raise as CuPy does for an invalid system of equations; return its size."""
    if A.shape[0] != A.shape[1]:
        raise ValueError(f"expected square matrix (shape: {A.shape})")
    if A.dtype.char not in "fdFD":
        raise TypeError(f"unsupported dtype (actual: {A.dtype})")
    n = A.shape[0]
    for name, each in (("b", b), ("x0", x0)):
        if each is not None and each.shape not in ((n,), (n, 1)):
            raise ValueError(f"{name} has incompatible dimensions")
    if M is not None and M.shape != A.shape:
        raise ValueError("matrix and preconditioner have different shapes")
    return n


DENSE_MAX = 1 << 28
"""Bytes up to which an operator is applied to the identity, for solvers that run on the server."""


def dense_of(A: Any) -> Any:
    """Return an operator as an array; NotImplementedError for a large one."""
    if A.shape[0] * A.shape[1] * A.dtype.itemsize > DENSE_MAX:
        raise NotImplementedError(
            f"a LinearOperator of {A.shape} is too large here: the server has only matrices, and "
            "of your own functions only cg, cgs, bicgstab and gmres make one product after another"
        )
    return A.matmat(_cupy.eye(A.shape[1], dtype=A.dtype))


def _is_matrix(value: Any) -> bool:
    return value is None or issparse(value) or is_dense(value)


def _start(A: Any, b: Any, x0: Any) -> tuple[Any, Any]:
    b = b.astype(A.dtype).ravel()
    x = _cupy.zeros(b.shape, A.dtype) if x0 is None else x0.astype(A.dtype).ravel()
    return x, b


def _whole(
    name: str, matrices: Any, b: Any, x0: Any, rtol: float, atol: float, maxiter: Any, more: Any
) -> Any:
    """Solve the linear system in the worker."""
    kind = more.pop("callback_type", None)  # of a callback, of which there is none
    if kind not in (None, "x", "pr_norm"):
        raise ValueError(f"Unknown callback_type: {kind}")
    args: dict[str, Any] = {"x0": x0, "maxiter": maxiter, "M": matrices[1], **more}
    given = {key: value for key, value in args.items() if value is not None}
    return _wire.ask(f"linalg.{name}", matrices[0], b, rtol=float(rtol), atol=float(atol), **given)


def _solver(name: str, loop: Any) -> Any:
    def solve(
        A: Any,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 1e-5,
        atol: float = 0.0,
        maxiter: Any = None,
        M: Any = None,
        callback: Any = None,
        **more: Any,
    ) -> Any:
        n = _checked(aslinearoperator(A), None if M is None else aslinearoperator(M), x0, b)
        matrices: list[Any] = [A, M]
        if callback is None and all(map(_is_matrix, matrices)):
            return _whole(name, matrices, b, x0, rtol, atol, maxiter, more)
        operator = aslinearoperator(A)
        before: Any = IdentityOperator(operator.shape, operator.dtype)
        before = before if M is None else aslinearoperator(M)
        x, right = _start(operator, b, x0)
        size = float(_cupy.linalg.norm(right)) if n else 0.0
        if n == 0 or size == 0:
            return right, 0
        limit = n * 10 if maxiter is None else maxiter
        enough = max(float(atol), rtol * size)
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


def _cgs(A: Any, b: Any, x: Any, M: Any, enough: float, limit: int, callback: Any) -> Any:
    rest = b - A.matvec(x)
    shadow = along = square = rest
    now = _cupy.vdot(shadow, rest)
    for _ in range(limit):
        image = A.matvec(M.matvec(along))
        scale = now / _cupy.vdot(shadow, image)
        half = square - scale * image
        step = M.matvec(square + half)
        x = x + scale * step
        rest = rest - scale * A.matvec(step)
        if callback is not None:
            callback(x)
        if float(_cupy.linalg.norm(rest)) <= enough:
            return x, 0
        before, now = now, _cupy.vdot(shadow, rest)
        ratio = now / before
        square = rest + ratio * half
        along = square + ratio * (half + ratio * along)
    return x, limit


def _bicgstab(A: Any, b: Any, x: Any, M: Any, enough: float, limit: int, callback: Any) -> Any:
    rest = b - A.matvec(x)
    shadow = rest
    along = image = _cupy.zeros_like(rest)
    rho = scale = omega = _cupy.ones((), rest.dtype)
    for _ in range(limit):
        now = _cupy.vdot(shadow, rest)
        along = rest + (now / rho) * (scale / omega) * (along - omega * image)
        step = M.matvec(along)
        image = A.matvec(step)
        scale = now / _cupy.vdot(shadow, image)
        half = rest - scale * image
        second = M.matvec(half)
        turned = A.matvec(second)
        omega = _cupy.vdot(turned, half) / _cupy.vdot(turned, turned)
        x = x + scale * step + omega * second
        rest = half - omega * turned
        rho = now
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
    callback_type: Any = None,
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


cg, bicgstab, cgs = _solver("cg", _cg), _solver("bicgstab", _bicgstab), _solver("cgs", _cgs)
gmres = _solver("gmres", _gmres)


def minres(
    A: Any, b: Any, x0: Any, callback: Any, *, M: Any, shift: float, tol: float, maxiter: Any
) -> Any:
    """Solve a symmetric system with a callback: a Lanczos process, and rotations of its matrix."""
    operator = aslinearoperator(A)
    n = _checked(operator, None if M is None else aslinearoperator(M), x0, b)
    before: Any = IdentityOperator(operator.shape, operator.dtype)
    before = before if M is None else aslinearoperator(M)
    x, right = _start(operator, b, x0)
    rest = right - operator.matvec(x) + shift * x
    earlier = wide = narrow = _cupy.zeros_like(rest)
    image = before.matvec(rest)
    length = first = _length(rest, image)
    last, cosines, sines, norm = 1.0, (1.0, 1.0), (0.0, 0.0), 0.0
    for _ in range(n * 5 if maxiter is None else maxiter):
        if first == 0:
            break
        along = image / length
        made = operator.matvec(along) - shift * along
        middle = float(_cupy.vdot(along, made).real)
        earlier, rest = rest, made - (middle / length) * rest - (length / last) * earlier
        image = before.matvec(rest)
        last, length, column = length, _length(rest, image), length
        norm += middle**2 + length**2 + column**2
        turned = cosines[1] * middle - cosines[0] * sines[1] * column
        above = sines[1] * middle + cosines[0] * cosines[1] * column
        size = max(float(np.hypot(turned, length)), float(np.finfo(right.dtype).eps))
        wide, narrow = narrow, (along - sines[0] * column * wide - above * narrow) / size
        cosines, sines = (cosines[1], turned / size), (sines[1], length / size)
        x = x + cosines[1] * first * narrow
        first *= -sines[1]
        callback(x)
        if abs(first) <= tol * float(np.sqrt(norm)) * float(_cupy.linalg.norm(x)):
            break
    else:
        return _widened(x), n * 5 if maxiter is None else maxiter
    return _widened(x), 0


def _length(vector: Any, image: Any) -> float:
    product = float(_cupy.vdot(vector, image).real)
    if product < 0:
        raise ValueError("indefinite preconditioner")
    return product**0.5


def _widened(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype == np.float32 else x  # as CuPy does
