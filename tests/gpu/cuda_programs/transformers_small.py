"""Hugging Face transformers: small models with drawn weights, generation and a step of training."""

import torch
import transformers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config).eval().cuda()
prompt = torch.randint(0, 512, (2, 9)).cuda()
with torch.no_grad():
    made = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
print("RESULT generated", *made[:, 9:].flatten().tolist())
model.train()
loss = model(made, labels=made).loss
loss.backward()
print("RESULT loss", loss.item())
bert = BertForMaskedLM(
    BertConfig(
        vocab_size=300,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
    )
)
bert = bert.eval().cuda().bfloat16()
with torch.no_grad():
    logits = bert(torch.arange(40).reshape(2, 20).cuda()).logits.float()
print("RESULT bert", logits.abs().mean().item())
