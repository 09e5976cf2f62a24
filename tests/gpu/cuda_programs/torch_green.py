"""PyTorch on a part of the multiprocessors: torch.cuda.green_contexts."""

import time

import torch

torch.manual_seed(0)
a, b = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
expected = (a @ b).abs().sum().item()
print(f"RESULT whole {expected:.2f}")
try:
    from torch.cuda.green_contexts import GreenContext
except ImportError as error:
    print(f"RESULT none {type(error).__name__}")
    raise SystemExit(0) from None


def seconds(turns: int) -> float:
    """Return how long products take one after the other."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(turns):
        a @ b
    torch.cuda.synchronize()
    return time.perf_counter() - start


seconds(20)
whole = seconds(200)
try:
    context = GreenContext.create(num_sms=32, device_id=0)
except RuntimeError as error:  # PyTorch was built without
    print("RESULT none", str(error).splitlines()[0])
    raise SystemExit(0) from None
context.set_context()
inside = (a @ b).abs().sum()
seconds(20)
part = seconds(200)
context.pop_context()
print(f"RESULT inside {inside.item():.2f}")
print(f"RESULT slower {part > 1.5 * whole}")
print(f"RESULT whole_ms {whole * 5:.3f}")
print(f"RESULT part_ms {part * 5:.3f}")
if hasattr(context, "Stream"):
    stream = context.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        product = a @ b
    torch.cuda.current_stream().wait_stream(stream)
    print(f"RESULT stream {product.abs().sum().item():.2f}")
print(f"RESULT after {(a @ b).abs().sum().item():.2f}")
