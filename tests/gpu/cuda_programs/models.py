"""ResNet-50 and GPT-2, measured: each argument is one workload; medians of five rounds.

    models.py resnet_train resnet_infer gpt2_train gpt2_generate resnet_stream:FOLDER:COUNT

The last waits until COUNT processes have put a file into FOLDER, and then counts for 4 seconds.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = time.perf_counter()
import torch

ROUNDS = 5


def say(name: str, value: float | str) -> None:
    print(f"RESULT {name} {value:.4f}" if isinstance(value, float) else f"RESULT {name} {value}")


def median_ms(count: int, work: Callable[[], Any]) -> float:
    """Return the median over five rounds of the mean time of ``count`` calls."""
    times: list[float] = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / count * 1e3)
    return statistics.median(times)


def resnet() -> Any:
    import torchvision

    torch.manual_seed(0)
    return torchvision.models.resnet50().cuda()


def resnet_train() -> None:
    model = resnet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(64, 3, 224, 224).cuda().contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,)).cuda()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    for _ in range(8):
        step()
    say("resnet_train_ms", median_ms(25, step))


def resnet_infer() -> None:
    model = resnet().eval()
    one = torch.randn(1, 3, 224, 224).cuda()

    def step() -> int:
        return int(model(one).argmax().item())

    with torch.no_grad():
        for _ in range(15):
            step()
        say("resnet_infer_ms", median_ms(60, step))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).cuda()


def gpt2_train() -> None:
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 50000, (8, 512)).cuda()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(5):
        step()
    say("gpt2_train_ms", median_ms(12, step))


def gpt2_generate() -> None:
    model = gpt2().eval()
    prompt = torch.randint(0, 50000, (1, 16)).cuda()

    def run() -> None:
        model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0).cpu()

    run()
    run()
    say("gpt2_generate_ms", median_ms(5, run))


def resnet_stream(folder: str, count: str) -> None:
    model = resnet().eval().to(memory_format=torch.channels_last).bfloat16()
    images = torch.randn(32, 3, 224, 224).cuda().bfloat16()
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(20):
            model(images)
        torch.cuda.synchronize()
        (Path(folder) / str(os.getpid())).touch()
        while len(list(Path(folder).iterdir())) < int(count):
            time.sleep(0.005)
        done, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < 4:
            for _ in range(10):
                model(images)
            torch.cuda.synchronize()
            done += 320
    say("images_per_s", done / elapsed)


def main() -> None:
    say("import_s", time.perf_counter() - START)
    start = time.perf_counter()
    torch.ones(4, device="cuda").sum().item()
    say("first_s", time.perf_counter() - start)
    for word in sys.argv[1:]:
        name, *arguments = word.split(":")
        globals()[name](*arguments)
        torch.cuda.empty_cache()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
