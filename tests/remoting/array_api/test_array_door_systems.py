"""Linear systems and chirp transforms of `cupyx.scipy.signal`, beside SciPy's."""

# The values that this module forwards have no static type: they are whatever a program passes.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import copy
import importlib
from typing import Any

import numpy as np
import pytest

from gpupool.remoting.devices.signals import linear_systems

scipy: Any = pytest.importorskip("scipy")

A = np.asarray([[0.0, 1.0], [-2.0, -3.0]])
B = np.asarray([[0.0], [1.0]])
C = np.asarray([[1.0, 0.5]])
D = np.asarray([[0.25]])
NUM, DEN = np.asarray([1.0, 3.0]), np.asarray([1.0, 2.0, 5.0])
TIMES = np.linspace(0, 4, 41)
SIGNAL = np.random.RandomState(1).rand(3, 40)

CALLS: dict[str, Any] = {
    "of a transfer function": lambda m, of: m.lti(of(NUM), of(DEN)).to_ss().A,
    "of zeros": lambda m, of: m.ZerosPolesGain(of([-1.0]), of([-2.0, -3.0]), 4.0).to_tf().num,
    "of states": lambda m, of: m.StateSpace(of(A), of(B), of(C), of(D)).to_zpk().poles,
    "gain": lambda m, of: m.TransferFunction(of(NUM), of(DEN)).to_zpk().gain,
    "step": lambda m, of: m.lti(of(A), of(B), of(C), of(D)).step(T=of(TIMES)),
    "impulse": lambda m, of: m.impulse((of(NUM), of(DEN)), T=of(TIMES)),
    "output": lambda m, of: m.lsim(m.lti(of(NUM), of(DEN)), of(np.sin(TIMES)), of(TIMES)),
    "bode": lambda m, of: m.lti(of(NUM), of(DEN)).bode(of(TIMES + 0.1)),
    "response": lambda m, of: m.freqresp(m.lti(of(NUM), of(DEN)), of(TIMES + 0.1)),
    "discrete": lambda m, of: m.cont2discrete((of(A), of(B), of(C), of(D)), 0.1, "bilinear")[:4],
    "of discrete time": lambda m, of: m.lti(of(NUM), of(DEN)).to_discrete(0.2).den,
    "discrete step": lambda m, of: m.dlti(of(NUM), of(DEN), dt=0.1).step(n=12),
    "discrete bode": lambda m, of: m.dbode(m.dlti(of(NUM), of(DEN), dt=0.1), of(TIMES[:9])),
    "discrete output": lambda m, of: m.dlsim((of(A), of(B), of(C), of(D), 0.5), of(TIMES)),
    "sum": lambda m, of: (m.StateSpace(*map(of, (A, B, C, D))) + of(D)).D,
    "product": lambda m, of: _square(m.StateSpace(*map(of, (A, B, C, D)))).B,
    "from the left": lambda m, of: (of(D) * m.StateSpace(*map(of, (A, B, C, D)))).C,
    "quotient": lambda m, of: (-m.StateSpace(*map(of, (A, B, C, D))) / 2).D,
    "places": lambda m, of: m.place_poles(of(A), of(B), of([-4.0, -5.0])).gain_matrix,
    "chirp": lambda m, of: m.CZT(40, 12, a=0.9)(of(SIGNAL)),
    "chirp of columns": lambda m, of: m.CZT(3)(of(SIGNAL), axis=0),
    "points": lambda m, of: m.CZT(40, 12, w=np.exp(-0.1j)).points(),
    "zoom": lambda m, of: m.ZoomFFT(40, [0.1, 0.4], 15, fs=2.5, endpoint=True)(of(SIGNAL)),
    "points of a zoom": lambda m, of: m.ZoomFFT(40, 0.4, 15).points(),
    "extrema": lambda m, of: m.argrelextrema(of(SIGNAL), _greater, axis=1, order=2),
    "wrapped extrema": lambda m, of: m.argrelextrema(of(SIGNAL[0]), _greater, mode="wrap"),
}


def _square(system: Any) -> Any:
    return system * system


def _greater(one: Any, other: Any) -> Any:
    return one > other


def _parts(value: Any) -> list[Any]:
    if not isinstance(value, tuple):
        return [value]
    return [part for item in value for part in _parts(item)]


@pytest.fixture
def ours(cp: Any) -> Any:
    del cp
    return importlib.import_module("cupyx.scipy.signal")


@pytest.mark.parametrize("name", CALLS)
def test_a_system_gives_what_scipy_gives(cp: Any, ours: Any, name: str) -> None:
    made, wanted = CALLS[name](ours, cp.asarray), CALLS[name](scipy.signal, np.asarray)
    for one, other in zip(_parts(made), _parts(wanted), strict=True):
        np.testing.assert_allclose(cp.asnumpy(one), other, rtol=1e-9, atol=1e-12)


def test_classes_of_systems_are_those_of_cupy(cp: Any, ours: Any) -> None:
    system = ours.lti(cp.asarray(NUM), DEN)
    assert isinstance(system, ours.TransferFunction)
    assert isinstance(system, ours.lti)
    assert type(system).__name__ == "TransferFunctionContinuous"
    assert system.dt is None
    assert isinstance(ours.dlti(NUM, DEN), ours.TransferFunction)
    assert ours.dlti(NUM, DEN).dt is True
    assert type(ours.StateSpace(system)).__name__ == "StateSpaceContinuous"
    assert isinstance(ours.TransferFunction(NUM, DEN, dt=0.5), ours.dlti)
    states = ours.StateSpace(A, B, C, D)
    assert (states.inputs, states.outputs) == (1, 1)
    assert repr(states).startswith("StateSpaceContinuous(\narray(")
    for wrong in ((), (1,), (1, 2, 3, 4, 5)):
        with pytest.raises(ValueError, match="2, 3 or 4"):
            ours.lti(*wrong)
    with pytest.raises(TypeError):
        _ = states * "text"


def test_a_system_is_a_value(cp: Any, ours: Any) -> None:
    system: Any = ours.dlti(NUM, DEN, dt=0.1)
    twins: list[Any] = [copy.deepcopy(system), copy.copy(system)]
    for twin in twins:
        setattr(twin, "num", [2.0])  # noqa: B010 - a setter makes it an array
        twin.dt = 0.5
        assert (twin.num.tolist(), twin.to_ss().dt) == ([2.0], 0.5)
    assert system.num.tolist() == NUM.tolist()
    assert system.dt == 0.1
    system.num = cp.asarray([0.0, 1.0])  # as it is: only a new system is trimmed
    assert system.to_tf().num.tolist() == [0.0, 1.0]


def test_wrong_chirps_raise_as_in_cupy(ours: Any) -> None:
    for wrong in (0, -1, 2.5):
        with pytest.raises(ValueError, match="Invalid number"):
            ours.CZT(wrong)
        with pytest.raises(ValueError, match="Invalid number"):
            ours.ZoomFFT(8, 0.5, wrong)
    with pytest.raises(ValueError, match="scalar"):
        ours.ZoomFFT(8, [1, 2, 3])
    with pytest.raises(ValueError, match="length 8"):
        ours.CZT(8)(np.ones(7))
    with pytest.raises(ValueError, match="Order"):
        ours.argrelextrema(np.ones(7), _greater, order=0)


def test_operations_refuse_what_is_no_system(cp: Any, ours: Any) -> None:
    session = cp._door.pool.current()
    del ours
    array = cp.ones(3)
    for wrong in (
        array,
        ("system", "os", (array,), None),
        ("system", "StateSpace", (array,), None),
        ("other", "StateSpace", (array,) * 4, None),
        ("system", ("lti",), (array,), None),
    ):
        for name in ("system.to_ss", "operator.neg"):
            with pytest.raises(TypeError, match="no linear system"):
                session.ask(f"signal.{name}", (wrong,))


def test_the_drop_in_has_all_functions_of_the_table(ours: Any) -> None:
    assert all(hasattr(ours, name) for name in linear_systems.FUNCTIONS)
    assert all(hasattr(ours, name) for name in linear_systems.MAKERS)
