"""NVML and CUDA about the same device: pynvml inside of a lease shows the partition."""

import pynvml
import torch

pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
print("RESULT count", pynvml.nvmlDeviceGetCount() >= 1)
print("RESULT name", pynvml.nvmlDeviceGetName(device))
print("RESULT uuid", pynvml.nvmlDeviceGetUUID(device))
print("RESULT capability", *pynvml.nvmlDeviceGetCudaComputeCapability(device))
print("RESULT bus", pynvml.nvmlDeviceGetPciInfo(device).busId)
print("RESULT driver", pynvml.nvmlSystemGetDriverVersion())
free, total = torch.cuda.mem_get_info()
memory = pynvml.nvmlDeviceGetMemoryInfo(device)
print("RESULT near", abs(memory.total - total) < 2 << 30, memory.used > 0)
try:
    properties = torch.cuda.get_device_properties(0)
    print("RESULT agrees", str(properties.uuid) in pynvml.nvmlDeviceGetUUID(device))
    print("RESULT utilization", 0 <= torch.cuda.utilization() <= 100)
except pynvml.NVMLError as error:
    print("RESULT refused", error)
