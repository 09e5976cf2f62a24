"""Libraries based on PyTorch: each a small model with drawn weights, and a typical step."""

import warnings

import torch
from sections import section
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    """Draw on the CPU, so that it is the same everywhere."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).cuda()


@section
def vision():
    import timm

    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=10).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(random(4, 3, 224, 224)).float().square().mean()
    loss.backward()
    return model.patch_embed.proj.weight.grad.abs().sum().item() > 0


@section
def adapters():
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=128, n_positions=64)
    model = GPT2LMHeadModel(config)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"])).cuda()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens = torch.arange(64).reshape(2, 32).cuda()
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
    return loss.item() < 5


@section
def trainer():
    import lightning as light

    class Line(light.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def training_step(self, batch, _number):
            x, y = batch
            return nn.functional.mse_loss(self.layer(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x = random(256, 8).cpu()
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2, pin_memory=True)
    fit = light.Trainer(
        accelerator="gpu", devices=1, max_epochs=4, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, precision="bf16-mixed",
    )  # fmt: skip
    model = Line()
    fit.fit(model, loader)
    return fit.strategy.root_device.type, (model.layer.weight - 1).abs().max().item() < 0.2


@section
def graphs():
    from torch_geometric.nn import GCNConv, global_mean_pool

    edges = torch.randint(0, 50, (2, 400), generator=torch.Generator().manual_seed(1)).cuda()
    torch.manual_seed(2)
    layer = GCNConv(8, 4).cuda()
    out = global_mean_pool(layer(random(50, 8), edges), torch.zeros(50, dtype=torch.long).cuda())
    return out.flatten().tolist()


@section
def processes():
    import gpytorch

    x = torch.linspace(0, 1, 200).cuda()
    y = torch.sin(6 * x)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x, y, likelihood) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
    model = Model(x, y, likelihood).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    for _ in range(20):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


@section
def encoder():
    from transformers import BertConfig, BertModel

    torch.manual_seed(3)
    config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
                        num_attention_heads=2, intermediate_size=64)  # fmt: skip
    model = BertModel(config).eval().cuda().half()
    with torch.no_grad():
        return model(torch.arange(60).reshape(3, 20).cuda()).pooler_output.float().norm().item()


@section
def sound():
    import torchaudio

    wave = torch.sin(torch.arange(16000) / 10).cuda()[None]
    mel = torchaudio.transforms.MelSpectrogram(16000).cuda()(wave)
    return mel.shape[1], mel.log1p().mean().item()


@section
def equations():
    from torchdiffeq import odeint

    y = odeint(lambda _t, y: -y, torch.ones(64).cuda(), torch.linspace(0, 1, 10).cuda())
    return y[-1].mean().item()


@section
def quantised():
    weight, scale = random(256, 256), 0.01
    eight = (weight / scale).clamp(-127, 127).to(torch.int8)
    whole = torch._int_mm(eight, eight.t().contiguous())
    eighths = random(64, 64).to(torch.float8_e4m3fn)
    one = torch.tensor(1.0).cuda()
    small = torch._scaled_mm(
        eighths, eighths.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
    )
    return whole.float().abs().mean().item(), small.float().abs().mean().item()


@section
def sparse():
    x = torch.eye(100).cuda().to_sparse_csr()
    made = x @ random(100, 7)
    nested = torch.nested.nested_tensor([random(3, 4), random(5, 4)], layout=torch.jagged)
    return made.abs().sum().item(), (nested * 2).values().abs().sum().item()


@section
def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = random(2, 4, 128, 64).half()
    kinds = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION,
             SDPBackend.MATH)  # fmt: skip
    found = []
    for kind in kinds:
        with sdpa_kernel(kind):
            made = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        found.append(made.float().abs().mean().item())
    return found


@section
def recurrent():
    torch.manual_seed(4)
    layer = nn.LSTM(16, 32, num_layers=2, batch_first=True, bidirectional=True).cuda()
    out, _ = layer(random(8, 20, 16))
    out.square().mean().backward()
    return out.abs().mean().item(), layer.weight_ih_l0.grad.abs().mean().item()


@section
def numbers():
    a = random(64, 64).double()
    symmetric = a @ a.T + torch.eye(64).cuda()
    values = torch.linalg.eigvalsh(symmetric)
    factor = torch.linalg.cholesky(symmetric)
    general = torch.linalg.eigvals(a).abs().sum()
    return values.sum().item(), factor.diagonal().prod().log().item(), general.item()


@section
def profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        random(64, 64) @ random(64, 64)
        torch.cuda.synchronize()
    return any("mm" in row.key for row in found.key_averages())


@section
def monitoring():
    torch.cuda.reset_peak_memory_stats()
    kept = torch.empty(10 << 20, device="cuda")
    stats = torch.cuda.memory_stats()
    torch.cuda.memory._record_memory_history(enabled=None)
    return (
        kept.numel(),
        stats["allocated_bytes.all.peak"] >= 40 << 20,
        torch.cuda.is_bf16_supported(),
    )


@section
def green():
    from torch.cuda.green_contexts import GreenContext

    part = GreenContext.create(num_sms=16, device_id=0)
    part.set_context()
    made = (random(128, 128) @ random(128, 128)).abs().mean().item()
    part.pop_context()
    return made
