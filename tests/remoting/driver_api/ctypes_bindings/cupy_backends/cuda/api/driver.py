"""What the worker of the CUDA door uses of CuPy's bindings of the driver, by ctypes."""

from ctypes_driver import DriverError, call

CUDADriverError = DriverError


def launchKernel(*arguments: int) -> None:
    call("cuLaunchKernel", *arguments)


def launchCooperativeKernel(*arguments: int) -> None:
    call("cuLaunchCooperativeKernel", *arguments)
