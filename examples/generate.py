"""Generate text across a cut: the client has the embeddings and two layers, the server the rest.

Each side keeps the keys and values of its own layers, so that a new token costs one small message each way. Random
weights stand for real ones: with `AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B")` the rest is the same.
"""

import tempfile

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import cutlayer as cl

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, pad_token_id=0, eos_token_id=None,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, use_safetensors=True).eval()

front, back = (half.eval() for half in cl.halves(cl.blocks(model), 2))  # block 0 is the embeddings
crossed = []


@torch.no_grad()
def generate(prompt, tokens):
    mine, theirs = DynamicCache(), DynamicCache()
    ids = new = prompt
    for _ in range(tokens):
        message = dict(front({"input_ids": new, "past_key_values": mine}))  # up: activations of the new tokens
        crossed.append(sum(tensor.nbytes for tensor in message.values()))
        logits = back({**message, "past_key_values": theirs})
        new = logits[:, -1:].argmax(dim=2)  # down: one token
        ids = torch.cat([ids, new], dim=1)
    return ids


for text in ("To be, or not to be", "split learning"):
    prompt = torch.tensor([list(text.encode())])
    whole = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=16)
    print(f"{text!r}: the tokens of the whole model:", torch.equal(generate(prompt, 16), whole))
print(f"bytes that cross the cut: {crossed[0]} for a prompt of 19 tokens, then {crossed[1]} a token")
