"""PyTorch with loader processes and pinned batches; a checkpoint from the GPU to the CPU."""

import io

import torch

torch.manual_seed(0)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        x = torch.linspace(-1, 1, 64) * (index % 37)
        return x, x.square().sum()


if __name__ == "__main__":
    print("RESULT before", torch.ones(3, device="cuda").sum().item())
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=64, num_workers=2, pin_memory=True, persistent_workers=True
    )
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    print("RESULT loss", loss.item())
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    there = torch.load(file, map_location="cpu")
    print("RESULT cpu", sum(v.abs().sum().item() for v in there["model"].values()))
    again = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    again.load_state_dict(there["model"])
    with torch.no_grad():
        x = torch.ones(1, 64)
        print("RESULT same", again(x).item(), model(x.cuda()).item())
    large = torch.randn(256, 256).cuda()
    print("RESULT svd", torch.linalg.svdvals(large)[:3].sum().item())
    print("RESULT eigen", torch.linalg.eigvalsh(large @ large.T).max().item())
    print("RESULT unique", torch.randint(0, 100, (10_000,)).cuda().unique().numel())
    print("RESULT topk", *large.flatten().topk(3).values.tolist())
