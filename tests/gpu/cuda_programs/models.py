"""ResNet-50 and GPT-2, measured: each argument is one workload; seven rounds of each.

    models.py resnet_train resnet_infer gpt2_train gpt2_generate resnet_stream:FOLDER:COUNT

Before a workload it prints ``READY name``, and before each round it takes a line from its standard
input, so that several processes can take turns. ``resnet_stream`` does not: it waits until COUNT
processes have put a file into FOLDER, and then counts for six seconds.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = time.perf_counter()
import torch

ROUNDS = 7


def say(name: str, value: float | str) -> None:
    print(f"RESULT {name} {value:.4f}" if isinstance(value, float) else f"RESULT {name} {value}")


def rounds(name: str, count: int, work: Callable[[], Any]) -> None:
    """Print the mean milliseconds of ``count`` calls, once a round."""
    print(f"READY {name}", flush=True)
    for _ in range(ROUNDS):
        sys.stdin.readline()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            work()
        torch.cuda.synchronize()
        say(f"{name}_ms", (time.perf_counter() - start) / count * 1e3)
        sys.stdout.flush()


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
    rounds("resnet_train", 30, step)


def resnet_infer() -> None:
    model = resnet().eval()
    one = torch.randn(1, 3, 224, 224).cuda()

    def step() -> int:
        return int(model(one).argmax().item())

    with torch.no_grad():
        for _ in range(15):
            step()
        rounds("resnet_infer", 60, step)


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
    rounds("gpt2_train", 20, step)


def gpt2_generate() -> None:
    model = gpt2().eval()
    prompt = torch.randint(0, 50000, (1, 16)).cuda()

    def run() -> None:
        model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0).cpu()

    run()
    run()
    rounds("gpt2_generate", 8, run)


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
        while (elapsed := time.perf_counter() - start) < 6:
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
