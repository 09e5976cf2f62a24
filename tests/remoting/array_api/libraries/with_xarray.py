"""xarray's labelled arrays over device arrays."""

import cupy as cp
import numpy as np
import xarray as xr

HOST = xr.DataArray(
    np.random.RandomState(0).rand(12, 5, 4), dims=("t", "y", "x"), coords={"t": np.arange(12)}
)
CALLS = {
    "mean": lambda a: a.mean("t"),
    "anomaly": lambda a: a - a.mean(("y", "x")),
    "label": lambda a: a.sel(t=3),
    "part": lambda a: a.isel(x=slice(1, 3)),
    "where": lambda a: a.where(a > 0.5, 0.0),
    "where of two": lambda a: xr.where(a > 0.5, a, -a),
    "order": lambda a: a.transpose("x", "t", "y"),
    "running sum": lambda a: a.cumsum("t"),
    "elementwise": lambda a: np.sqrt(a).clip(0.2, 0.6).round(2),
    "rolling": lambda a: a.rolling(t=3).mean(),
    "coarse": lambda a: a.coarsen(t=3).mean(),
    "joined": lambda a: xr.concat([a, a], "t"),
    "stacked": lambda a: a.stack(p=("y", "x")).mean("p"),
    "product": lambda a: xr.dot(a, a, dim="t"),
    "shifted": lambda a: a.shift(t=1).fillna(0),
    "groups": lambda a: a.groupby(a.t % 3).mean(),
    "places": lambda a: a.argmax("t"),
    "median": lambda a: a.median("t"),
    "sorted": lambda a: a.sortby("t", ascending=False),
    "derivative": lambda a: a.differentiate("t"),
    "integral": lambda a: a.integrate("t"),
    "function": lambda a: xr.apply_ufunc(lambda values: values * 2, a),
    "padded": lambda a: a.pad(t=1),
    "correlation": lambda a: xr.corr(a, a * 2, "t"),
}


def main() -> None:
    """Compare each result with that of NumPy's arrays."""
    labelled = HOST.copy(data=cp.asarray(HOST.data))
    for name, call in CALLS.items():
        made, wanted = call(labelled), call(HOST)
        assert isinstance(made.data, cp.ndarray), (name, type(made.data))
        np.testing.assert_allclose(cp.asnumpy(made.data), wanted.data)
    assert "cupy" in repr(labelled) or "0." in repr(labelled)
    print("as NumPy:", len(CALLS))


main()
