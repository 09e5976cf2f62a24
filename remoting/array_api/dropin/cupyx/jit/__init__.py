"""Kernels from Python functions, as CuPy's `cupyx.jit` has them, translated on this machine."""

from cupy._door import absent as _absent

from cupyx.jit import _functions
from cupyx.jit import cg as cg
from cupyx.jit import cub as cub
from cupyx.jit import thrust as thrust
from cupyx.jit._kinds import INT32 as _INT32
from cupyx.jit._kinds import Value as _Value
from cupyx.jit._raw import rawkernel as rawkernel

threadIdx = _functions.triple("threadIdx")
blockDim = _functions.triple("blockDim")
blockIdx = _functions.triple("blockIdx")
gridDim = _functions.triple("gridDim")
warpsize = _Value("warpSize", _INT32)

range = _functions.OF_PYTHON[range]  # noqa: A001 - the name is CuPy's
syncthreads = _functions.Barrier()
syncwarp = _functions.WarpBarrier()
shared_memory = _functions.Shared()
grid = _functions.Grid("grid", "(threadIdx.$ + blockIdx.$ * blockDim.$)")
gridsize = _functions.Grid("gridsize", "(blockDim.$ * gridDim.$)")
laneid = _functions.Lane()

_WHOLE = "int32 uint32 uint64"
atomic_add = _functions.Atomic("Add", "int32 uint32 uint64 float16 float32 float64")
atomic_sub = _functions.Atomic("Sub", "int32 uint32")
atomic_exch = _functions.Atomic("Exch", "int32 uint32 uint64 float32")
atomic_min = _functions.Atomic("Min", _WHOLE)
atomic_max = _functions.Atomic("Max", _WHOLE)
atomic_inc = _functions.Atomic("Inc", "uint32")
atomic_dec = _functions.Atomic("Dec", "uint32")
atomic_cas = _functions.Atomic("CAS", "uint16 int32 uint32 uint64")
atomic_and = _functions.Atomic("And", _WHOLE)
atomic_or = _functions.Atomic("Or", _WHOLE)
atomic_xor = _functions.Atomic("Xor", _WHOLE)

shfl_sync = _functions.Shuffle("")
shfl_up_sync = _functions.Shuffle("up_")
shfl_down_sync = _functions.Shuffle("down_")
shfl_xor_sync = _functions.Shuffle("xor_")

__getattr__ = _absent.lookup(__name__)
