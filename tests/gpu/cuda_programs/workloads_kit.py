"""Common parts of the workloads of ``workloads.py``."""

from collections.abc import Callable
from typing import Any

Made = tuple[Callable[[], object], Callable[[], object]]
"""A step, and a function that waits for all steps."""


def torch_made(step: Callable[[], object]) -> Made:
    """Return the step of a workload of PyTorch."""
    import torch

    return step, torch.cuda.synchronize


def training(
    model: Any, data: Any, labels: Any, dtype: Any = None, optimizer: Any = None
) -> Callable[[], Any]:
    """Return a step of training, of which each gives its loss; ``dtype``: autocast to it."""
    import torch

    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            output = model(data)
            loss = torch.nn.functional.cross_entropy(
                output.float().flatten(0, -2), labels.flatten()
            )
        loss.backward()
        optimizer.step()
        return loss

    return step


def words_model(vocabulary: int, width: int, heads: int, layers: int) -> Any:
    """Return a model of GPT-2's shape: logits for each place of a text."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(vocabulary, width)
            self.places = torch.nn.Embedding(1024, width)
            layer = torch.nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = torch.nn.Linear(width, vocabulary, bias=False)

        def forward(self, words: Any) -> Any:
            count = words.shape[1]
            x = self.words(words) + self.places(torch.arange(count, device=words.device))
            mask = torch.nn.Transformer.generate_square_subsequent_mask(count, device=words.device)
            return self.head(self.layers(x, mask=mask, is_causal=True))

    return Model().cuda()


def resnet(depth: int) -> Any:
    """Return a ResNet of random weights, for inference."""
    import torchvision

    return getattr(torchvision.models, f"resnet{depth}")().cuda().eval()
