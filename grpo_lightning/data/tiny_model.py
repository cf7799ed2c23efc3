"""The embedded task's model: random weights in a published architecture, so that every engine can run it.

python -m grpo_lightning.data.tiny_model FOLDER [--seed 0] [--hidden 128] ...
"""

from __future__ import annotations

from pathlib import Path


def build_tiny_model(
    folder: str,
    *,
    seed: int = 0,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    mlp: int = 384,
    max_positions: int = 256,
) -> Path:
    """Save a Qwen2 model with random weights, and the running totals' tokenizer, as a Hugging Face folder.

    With the defaults it has 0.8 million parameters (tied embeddings). The global random state is left as it was.

    Args:
        folder: made if it is missing.
        seed: of the weights.
        hidden: width.
        layers: number of layers.
        heads: attention heads.
        kv_heads: heads of keys and values.
        mlp: width of the gated MLP.
        max_positions: longest sequence, in tokens.

    Returns:
        The folder.
    """
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    from grpo_lightning.data.arithmetic import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.model_max_length = max_positions
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=mlp,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    path = Path(folder)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


if __name__ == "__main__":
    from jsonargparse import auto_cli

    print(auto_cli(build_tiny_model))
