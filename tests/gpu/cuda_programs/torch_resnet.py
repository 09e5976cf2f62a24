"""ResNet-50: training, batch 64, bf16 autocast, channels_last; inference, batch 1."""

import time

import torch
import torchvision

torch.manual_seed(0)
torch.backends.cudnn.benchmark = False
model = torchvision.models.resnet50()
model = model.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images = torch.randn(64, 3, 224, 224).cuda().contiguous(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (64,)).cuda()


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss


first = time.perf_counter()
print("RESULT loss1", step().item())
print(f"RESULT first_s {time.perf_counter() - first:.2f}")
for _ in range(5):
    step()
torch.cuda.synchronize()
times = []
for _ in range(3):
    start = time.perf_counter()
    for _ in range(20):
        loss = step()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - start) / 20)
print("RESULT loss_falls", loss.item() < 7.2)
print(f"RESULT train_ms {sorted(times)[1] * 1e3:.3f}")
model.eval()
one = torch.randn(1, 3, 224, 224).cuda()
with torch.no_grad():
    model = model.to(memory_format=torch.contiguous_format)
    for _ in range(10):
        out = model(one)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(50):
        out = model(one)
        out.argmax().item()
    print(f"RESULT infer_ms {(time.perf_counter() - start) / 50 * 1e3:.3f}")
