"""The part of CuPy's driver bindings for the worker of the CUDA door, by ctypes."""

from ctypes_driver import DriverError, call

CUDADriverError = DriverError


def launchKernel(*arguments: int) -> None:
    call("cuLaunchKernel", *arguments)


def launchCooperativeKernel(*arguments: int) -> None:
    call("cuLaunchCooperativeKernel", *arguments)
