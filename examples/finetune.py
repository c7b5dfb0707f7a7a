"""Fine-tune a language model across a cut: LoRA and SMoFi, on the texts of three clients.

Labels stay, so a client holds the embeddings, the first layer and the head, and its tokens are sent to nobody: only
activations and their gradients cross. Random weights and a tokenizer of bytes stand for real ones.
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import cutlayer as cl

TEXTS = [
    ["the cat sat on the mat. ", "the cat ate the rat. ", "a rat sat on a cat. "],
    ["one and two make three. ", "two and two make four. ", "one and one make two. "],
    ["red and blue make purple. ", "red and white make pink. ", "blue and yellow make green. "],
]


def tokenizer(text):
    return list(text.encode())


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64,
)  # fmt: skip
adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj", "down_proj", "lm_head"])
model = get_peft_model(LlamaForCausalLM(config), adapters)
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"{trained} weights are trained, of {sum(p.numel() for p in model.parameters())}")

clients = [cl.text.packed(texts * 10, tokenizer, length=32) for texts in TEXTS]
test = cl.text.padded([text for texts in TEXTS for text in texts], tokenizer, length=32)
with torch.no_grad():
    before = cl.Perplexity()
    before.update(model(**test[0]).logits, test[1])
print(f"before: perplexity {before.compute():.1f}")
result = cl.train(
    model, clients, test, cut=1, labels="stay", scheme="smofi", loss=cl.next_token, metric=cl.Perplexity(),
    optimizer=cl.AdamW(lr=1e-2), rounds=4, batch_size=8, local_epochs=2,
)  # fmt: skip
for record in result.history:
    print(f"round {record.n}: perplexity {record.metric:.1f}, {record.bytes_up / 1e6:.1f} MB up")
