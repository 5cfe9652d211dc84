"""Makes the model that the engines of this test serve: a two-layer Llama with random weights and one token per byte.

    tiny_model.py DIRECTORY [KIND]

KIND is `full` (the default), `window` (each layer has a sliding window), `windows` (every second layer has) or `long` (one layer and room for
prompts of 30,000 tokens). It needs no download. Its
weights come from one seed, so that every engine started on the directory computes the same tokens, and they are drawn wide, so that the
answer changes with every byte of the prompt.
"""

import json
import pathlib
import sys

import tokenizers
import torch
import transformers

LAYERS, HEADS, HEAD_DIM = 2, 4, 32
WINDOW = 64  # tokens
CONTEXT, LONG_CONTEXT = 4096, 32768
VOCABULARY = 320  # 256 bytes, three marks, and room up to a multiple of 64
CHAT = (
    "{% if tools %}<tools>{{ tools | tojson }}\n{% endif %}{% if mood %}<mood>{{ mood }}\n{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer():
    bytelevel = tokenizers.pre_tokenizers.ByteLevel
    ids = {symbol: number for number, symbol in enumerate(sorted(bytelevel.alphabet()))}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
    core.pre_tokenizer = bytelevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    marks = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=core, **marks)
    tokenizer.chat_template = CHAT
    return tokenizer


def model(tokenizer, long):
    torch.manual_seed(20)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HEADS * HEAD_DIM,
            intermediate_size=2 * HEADS * HEAD_DIM,
            num_hidden_layers=1 if long else LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            head_dim=HEAD_DIM,
            max_position_embeddings=LONG_CONTEXT if long else CONTEXT,
            initializer_range=0.3,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    ).to(torch.float32)


def slide(directory, every):
    """Gives layers of a saved Llama sliding windows: every layer, or every second one."""
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["sliding_window"] = WINDOW
    config["layer_types"] = ["full_attention" if n % every else "sliding_attention" for n in range(LAYERS)]
    path.write_text(json.dumps(config))


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(directory)
    kind = sys.argv[2] if len(sys.argv) > 2 else "full"
    model(tokenizer, kind == "long").save_pretrained(directory)
    if kind in ("window", "windows"):
        slide(directory, {"window": 1, "windows": 2}[kind])


if __name__ == "__main__":
    main()
