"""GPT-2 124M with random weights: training 8 x 512 tokens in bf16 with AdamW; generation."""

import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
tokens = torch.randint(0, 50000, (8, 512)).cuda()


def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    return loss


first = time.perf_counter()
print("RESULT loss1", step().item())
print(f"RESULT first_s {time.perf_counter() - first:.2f}")
for _ in range(4):
    step()
times = []
for _ in range(3):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        value = step().item()
    times.append((time.perf_counter() - start) / 10)
print("RESULT loss2", value)
print(f"RESULT train_ms {sorted(times)[1] * 1e3:.3f}")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
step()
print("RESULT fused", step().item())
model.eval()
prompt = tokens[:1, :16]
for _ in range(2):
    torch.cuda.synchronize()
    start = time.perf_counter()
    out = model.generate(prompt, max_new_tokens=20, do_sample=False, pad_token_id=0)
    out.cpu()
    seconds = time.perf_counter() - start
print("RESULT tokens", out.shape[1])
print(f"RESULT generate_ms {seconds * 1e3:.2f}")
