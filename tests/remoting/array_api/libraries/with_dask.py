"""Dask's arrays of device arrays: blocks stay on the device, in one thread and in several."""

import cupy as cp
import dask
import dask.array as da
import numpy as np

HOST = np.random.RandomState(0).rand(60, 5)
CALLS = {
    "sum": lambda a: a.sum(),
    "mean": lambda a: a.mean(0),
    "deviation": lambda a: a.std(1),
    "product": lambda a: a @ a.T,
    "slice": lambda a: a[10:30, [0, 2]],
    "elementwise": lambda a: da.sqrt(a) + da.where(a > 0.5, a, 0),
    "blocks": lambda a: a.rechunk((30, 5)).map_blocks(lambda block: block * 2),
    "overlap": lambda a: a.map_overlap(lambda block: block + 1, depth=1, boundary="reflect"),
    "joined": lambda a: da.concatenate([a, da.roll(a, 3)]),
    "running sum": lambda a: a.cumsum(0),
    "places": lambda a: a.argmax(0),
    "largest": lambda a: da.topk(a, 2, axis=0),
    "histogram": lambda a: da.histogram(a, bins=5, range=(0, 1))[0],
    "counts": lambda a: da.bincount((a[:, 0] * 5).astype(int), minlength=5),
    "singular values": lambda a: da.linalg.svd(a)[1],
    "triangle": lambda a: abs(da.linalg.qr(a)[1]),
    "transform": lambda a: da.fft.fft(a.rechunk((60, 1)), axis=0),
    "tensors": lambda a: da.einsum("ij,ij->j", a, a),
    "padded": lambda a: da.pad(a, 1),
}


def main() -> None:
    """Compare each result with that of NumPy's blocks."""
    for scheduler in ("synchronous", "threads"):
        dask.config.set(scheduler=scheduler)
        for name, call in CALLS.items():
            made = call(da.from_array(cp.asarray(HOST), chunks=(20, 5), asarray=False)).compute()
            wanted = call(da.from_array(HOST, chunks=(20, 5))).compute()
            assert isinstance(made, cp.ndarray), (name, type(made))
            np.testing.assert_allclose(cp.asnumpy(made), wanted, rtol=1e-6, atol=1e-9)
    parts = da.random.default_rng(cp.random.default_rng(0)).random((40,), chunks=10).compute()
    assert isinstance(parts, cp.ndarray)
    assert len(set(parts.tolist())) == 40
    print("as NumPy:", len(CALLS))


main()
