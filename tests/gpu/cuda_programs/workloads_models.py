"""Workloads of PyTorch that are models, for ``workloads.py``: training, inference, generation."""

from collections.abc import Iterator
from typing import Any

from workloads_kit import Made, resnet, torch_made, training, words_model


def gpt2_train() -> Made:
    """GPT-2 of 124 million parameters, 8 x 512 in bf16, with loss.item()."""
    import torch

    model = words_model(50257, 768, 12, 12)
    data = torch.randint(0, 50257, (8, 512)).cuda()
    step = training(model, data, data, torch.bfloat16)
    return torch_made(lambda: float(step().item()))


def gpt2_generate() -> Made:
    """Twenty tokens of GPT-2, greedily, on the host at the end."""
    import torch
    import transformers

    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model: Any = transformers.GPT2LMHeadModel(config).cuda().eval()
    prompt = torch.randint(0, 50000, (1, 16)).cuda()
    seen = torch.ones_like(prompt)

    def step() -> int:
        words = model.generate(
            prompt, attention_mask=seen, max_new_tokens=20, do_sample=False, pad_token_id=0
        )
        return int(words.cpu()[0, 16])

    return torch_made(step)


def small_training(dtype: Any) -> Made:
    import torch

    model = words_model(1000, 256, 8, 4)
    data = torch.randint(0, 1000, (16, 64)).cuda()
    return torch_made(training(model, data, data, dtype))


def train() -> Made:
    """Four small layers of a transformer, in fp32, without a wait."""
    return small_training(None)


def train16() -> Made:
    """Train the same with fp16 where autocast takes it."""
    import torch

    return small_training(torch.float16)


def compiled() -> Made:
    """Six layers of a transformer, trained through torch.compile."""
    import torch

    model: Any = torch.compile(words_model(8000, 512, 8, 6))
    data = torch.randint(0, 8000, (16, 128)).cuda()
    return torch_made(training(model, data, data))


def resnet_training(dtype: Any) -> Made:
    import torch

    model = resnet(50).train().to(memory_format=torch.channels_last)
    images = torch.randn(64, 3, 224, 224).cuda().contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return torch_made(training(model, images, labels, dtype, optimizer))


def resnet_train() -> Made:
    """ResNet-50, 64 images, in bf16."""
    import torch

    return resnet_training(torch.bfloat16)


def resnet_train32() -> Made:
    """Train the same in fp32."""
    return resnet_training(None)


def infer() -> Made:
    """ResNet-50 on one image, with .item()."""
    import torch

    model, one = resnet(50), torch.randn(1, 3, 224, 224).cuda()

    def step() -> int:
        with torch.no_grad():
            return int(model(one).argmax().item())

    return torch_made(step)


def denoiser() -> Any:
    """Return a small UNet: blocks with the time's embedding, attention at the two coarser sizes."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int) -> None:
            super().__init__()
            self.first = nn.Sequential(
                nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
            )
            self.time = nn.Linear(256, after)
            self.second = nn.Sequential(
                nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
            )
            self.past = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            inner = self.first(x) + self.time(time)[:, :, None, None]
            return self.past(x) + self.second(inner)

    class Attention(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(8, width)
            self.inner = nn.MultiheadAttention(width, 4, batch_first=True)

        def forward(self, x: Any) -> Any:
            places = self.norm(x).flatten(2).transpose(1, 2)
            found, _ = self.inner(places, places, places, need_weights=False)
            return x + found.transpose(1, 2).reshape(x.shape)

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
            self.enter = nn.Conv2d(4, 128, 3, padding=1)
            self.fine, self.middle, self.coarse = (
                Block(128, 128), Block(128, 256), Block(256, 256),
            )  # fmt: skip
            self.see_middle, self.see_coarse = Attention(256), Attention(256)
            self.down = nn.ModuleList([nn.Conv2d(n, n, 3, 2, 1) for n in (128, 256)])
            self.up = nn.Upsample(scale_factor=2)
            self.back_middle, self.back_fine = Block(512, 256), Block(384, 128)
            self.leave = nn.Sequential(nn.GroupNorm(8, 128), nn.SiLU(), nn.Conv2d(128, 4, 1))

        def forward(self, x: Any, step: Any) -> Any:
            angles = step[:, None] * torch.exp(-torch.arange(32, device=x.device) / 4.0)
            time = self.time(torch.cat([angles.sin(), angles.cos()], 1).to(x.dtype))
            fine = self.fine(self.enter(x), time)
            middle = self.see_middle(self.middle(self.down[0](fine), time))
            coarse = self.see_coarse(self.coarse(self.down[1](middle), time))
            x = self.back_middle(torch.cat([self.up(coarse), middle], 1), time)
            return self.leave(self.back_fine(torch.cat([self.up(x), fine], 1), time))

    return Denoiser().cuda().eval()


def unet() -> Made:
    """Ten steps of a small diffusion UNet in fp16, with guidance; the picture on the host."""
    import torch

    model = denoiser().half()
    noise = torch.randn(1, 4, 64, 64).cuda().half()

    def step() -> float:
        with torch.no_grad():
            x = noise
            for at in range(10):
                time = torch.full((2,), 1.0 - at / 10, device=x.device)
                with_words, without = model(torch.cat([x, x]), time).chunk(2)
                x = x - 0.1 * (without + 3.0 * (with_words - without))
            return float(x.cpu().float().square().mean())

    return torch_made(step)


def lstm() -> Made:
    """Two layers of cuDNN's LSTM, forwards, backwards and Adam."""
    import torch

    model = torch.nn.LSTM(256, 512, 2, batch_first=True).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randn(64, 100, 256).cuda()

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(data)[0].square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return torch_made(step)


def small_copies() -> Made:
    """32 images, copied one by one, and ResNet-18 in fp16."""
    import torch

    model = resnet(18).half()
    images = [torch.randn(3, 224, 224).half() for _ in range(32)]

    def step() -> int:
        with torch.no_grad():
            batch = torch.stack([image.to("cuda") for image in images])
            return int(model(batch).argmax(1)[0].item())

    return torch_made(step)


def dataloader() -> Made:
    """ResNet-18 trained on images that a DataLoader's four processes load into pinned memory."""
    import torch

    class Images(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.pixels = torch.randint(0, 256, (64, 3, 224, 224), dtype=torch.uint8)

        def __len__(self) -> int:
            return 4096

        def __getitem__(self, at: int) -> tuple[Any, int]:
            return self.pixels[at % 64].float() / 255, at % 1000

    loader = torch.utils.data.DataLoader(
        Images(), batch_size=32, num_workers=4, pin_memory=True, persistent_workers=True
    )

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    model = resnet(18).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    source = batches()

    def step() -> Any:
        images, labels = (each.cuda(non_blocking=True) for each in next(source))
        return training(model, images, labels, None, optimizer)()

    return torch_made(step)


def rl_loop() -> Made:
    """32 steps of a policy, with a state from the host and .item() at each, and one update."""
    import torch

    policy = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 8)
    ).cuda()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    states = torch.randn(32, 64)

    def step() -> float:
        losses: list[Any] = []
        for at in range(32):
            choices = torch.distributions.Categorical(logits=policy(states[at].cuda()))
            action = choices.sample()
            losses.append(-choices.log_prob(action) * (1.0 if action.item() > 3 else -1.0))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        return 1.0

    return torch_made(step)


MODELS = {
    one.__name__: one
    for one in (
        *(gpt2_train, gpt2_generate, train, train16, compiled, resnet_train, resnet_train32),
        *(infer, unet, lstm, small_copies, dataloader, rl_loop),
    )
}
