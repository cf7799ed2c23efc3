"""The model of the vocabulary-heavy workload: random weights, 25 million of them, of which half are the vocabulary's.

python -m experiments.benchmark.model_w2 FOLDER

A model of random weights gives every one of 32,768 tokens about the same probability, so its completions would all run
to the limit. Here the end-of-text token has a probability of 1/80 at any place, which makes lengths nearly geometric:
mean 77 under a limit of 256, with a long tail. Embedding and head are one matrix, so that no weights are added for it:
all embeddings have the same entry in one dimension, which the residual stream carries to the head, and the end-of-text
row is given a larger one there, found by bisection. A single real update would undo it: keep the learning rate at 0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 32_768
PAD, EOS = 0, 1
FIRST_CHARACTER = 2
CHARACTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)]
"""What prompts are made of: visible, so that nothing trims them."""
END_PROBABILITY = 1 / 80


def character_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """One token a character; the rest of the vocabulary are tokens that no text has."""
    names = ["<pad>", "<eos>", *CHARACTERS]
    names += [f"<{number}>" for number in range(len(names), vocabulary)]
    tokenizer = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern="", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")


def random_model(
    *, hidden: int = 384, mlp: int = 1024, layers: int = 8, vocabulary: int = VOCABULARY
) -> Qwen2ForCausalLM:
    """Qwen2 with heads of 64 dimensions, three of which share keys and values, tied embeddings, by seed 0."""
    heads = hidden // 64
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=hidden,
            intermediate_size=mlp,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=max(heads // 3, 1),
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=EOS,
            pad_token_id=PAD,
        )
    ).eval()


@torch.no_grad()
def end_probability(model: Qwen2ForCausalLM, ids: torch.Tensor) -> float:
    """Mean probability of the end-of-text token after the second half of each of ``ids``, ``[B, S]``."""
    logits = model(input_ids=ids, logits_to_keep=ids.shape[1] // 2).logits
    return float(logits.softmax(dim=-1)[..., EOS].mean())


@torch.no_grad()
def tune_end(model: Qwen2ForCausalLM, *, probability: float = END_PROBABILITY) -> float:
    """Give the end-of-text token that probability; returns what was reached."""
    embeddings = model.get_input_embeddings().weight
    embeddings[:, 0] = 1.0
    ids = torch.randint(FIRST_CHARACTER, FIRST_CHARACTER + len(CHARACTERS), (4, 200))
    low, high = 0.0, 64.0
    reached = 0.0
    for _ in range(24):
        middle = (low + high) / 2
        embeddings[EOS, 0] = 1.0 + middle
        reached = end_probability(model, ids)
        low, high = (middle, high) if reached < probability else (low, middle)
    return reached


def make(folder: Path) -> None:
    """Write model and tokenizer to ``folder``."""
    model = random_model()
    reached = tune_end(model)
    model.save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    print(f"{folder}: {model.num_parameters():,} parameters, end-of-text probability {reached:.4f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    make(Path(sys.argv[1]))
